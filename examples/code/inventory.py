"""Keeps the stock of a warehouse and tells what has to be ordered."""

import csv
import json
import unittest


class Item:
    """One kind of goods."""

    def __init__(self, name, price, quantity=0, minimum=0):
        self.name = name
        self.price = price
        self.quantity = quantity
        self.minimum = minimum

    @property
    def value(self):
        return self.price * self.quantity

    @property
    def is_low(self):
        return self.quantity < self.minimum

    def to_dict(self):
        return {
            "name": self.name,
            "price": self.price,
            "quantity": self.quantity,
            "minimum": self.minimum,
        }

    @classmethod
    def from_dict(cls, data):
        return cls(
            name=data["name"],
            price=data["price"],
            quantity=data.get("quantity", 0),
            minimum=data.get("minimum", 0),
        )

    def __repr__(self):
        return "Item(name={!r}, price={!r}, quantity={!r})".format(
            self.name, self.price, self.quantity
        )


class Inventory:
    """All items by name."""

    def __init__(self):
        self.items = {}

    def add(self, item):
        if item.name in self.items:
            raise ValueError("item already exists: {}".format(item.name))
        self.items[item.name] = item

    def remove(self, name):
        if name not in self.items:
            raise KeyError(name)
        del self.items[name]

    def receive(self, name, quantity):
        if quantity < 0:
            raise ValueError("quantity must not be negative")
        self.items[name].quantity += quantity

    def deliver(self, name, quantity):
        item = self.items[name]
        if quantity > item.quantity:
            raise ValueError("not enough {}: {}".format(name, item.quantity))
        item.quantity -= quantity

    def total_value(self):
        return sum(item.value for item in self.items.values())

    def low_items(self):
        return [item for item in self.items.values() if item.is_low]

    def orders(self):
        result = {}
        for item in self.low_items():
            result[item.name] = item.minimum - item.quantity
        return result

    def save_json(self, path):
        with open(path, "w") as file:
            json.dump([item.to_dict() for item in self.items.values()], file)

    def load_json(self, path):
        with open(path) as file:
            for data in json.load(file):
                self.add(Item.from_dict(data))

    def load_csv(self, path):
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                self.add(
                    Item(
                        name=row["name"],
                        price=float(row["price"]),
                        quantity=int(row["quantity"]),
                        minimum=int(row["minimum"]),
                    )
                )


class InventoryTest(unittest.TestCase):
    def setUp(self):
        self.inventory = Inventory()
        self.inventory.add(Item("bolt", 0.25, quantity=100, minimum=50))
        self.inventory.add(Item("nut", 0.10, quantity=20, minimum=40))

    def test_total_value(self):
        self.assertAlmostEqual(self.inventory.total_value(), 27.0)

    def test_low_items(self):
        self.assertEqual([item.name for item in self.inventory.low_items()], ["nut"])

    def test_orders(self):
        self.assertEqual(self.inventory.orders(), {"nut": 20})

    def test_receive(self):
        self.inventory.receive("nut", 30)
        self.assertEqual(self.inventory.items["nut"].quantity, 50)

    def test_deliver(self):
        self.inventory.deliver("bolt", 60)
        self.assertEqual(self.inventory.items["bolt"].quantity, 40)

    def test_deliver_too_many(self):
        with self.assertRaises(ValueError):
            self.inventory.deliver("nut", 21)
