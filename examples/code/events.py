"""A calendar of events: adding, finding, repeating and exporting them."""

import datetime
import logging
from collections import defaultdict

logger = logging.getLogger(__name__)


class Event:
    def __init__(self, title, start, end, tags=None):
        if end < start:
            raise ValueError("an event cannot end before it starts")
        self.title = title
        self.start = start
        self.end = end
        self.tags = set(tags or [])

    @property
    def duration(self):
        return self.end - self.start

    def overlaps(self, other):
        return self.start < other.end and other.start < self.end

    def move(self, delta):
        self.start = self.start + delta
        self.end = self.end + delta

    def copy(self):
        return Event(self.title, self.start, self.end, self.tags)

    def has_tag(self, tag):
        return tag in self.tags

    def __lt__(self, other):
        return self.start < other.start

    def __repr__(self):
        return "<Event {} {}>".format(self.title, self.start.isoformat())


class Calendar:
    def __init__(self, name):
        self.name = name
        self.events = []
        self.listeners = defaultdict(list)

    def on(self, name, listener):
        self.listeners[name].append(listener)

    def emit(self, name, *args):
        for listener in self.listeners[name]:
            try:
                listener(*args)
            except Exception as error:
                logger.error("listener of %s failed: %s", name, error)

    def add(self, event):
        self.events.append(event)
        self.events.sort()
        self.emit("add", event)
        return event

    def remove(self, event):
        self.events.remove(event)
        self.emit("remove", event)

    def between(self, start, end):
        return [event for event in self.events if event.start < end and start < event.end]

    def on_day(self, day):
        start = datetime.datetime.combine(day, datetime.time.min)
        end = start + datetime.timedelta(days=1)
        return self.between(start, end)

    def with_tag(self, tag):
        return [event for event in self.events if event.has_tag(tag)]

    def conflicts(self):
        result = []
        for index, event in enumerate(self.events):
            for other in self.events[index + 1:]:
                if event.overlaps(other):
                    result.append((event, other))
        return result

    def repeat(self, event, delta, count):
        copies = []
        for index in range(count):
            copy = event.copy()
            copy.move(delta * (index + 1))
            copies.append(self.add(copy))
        return copies

    def next_event(self, now):
        for event in self.events:
            if event.start >= now:
                return event
        return None

    def free_slots(self, start, end, duration):
        slots = []
        current = start
        for event in self.between(start, end):
            if event.start - current >= duration:
                slots.append((current, event.start))
            current = max(current, event.end)
        if end - current >= duration:
            slots.append((current, end))
        return slots

    def to_text(self):
        lines = []
        for event in self.events:
            lines.append(
                "{} {} {}".format(
                    event.start.strftime("%Y-%m-%d %H:%M"),
                    event.end.strftime("%H:%M"),
                    event.title,
                )
            )
        return "\n".join(lines)
