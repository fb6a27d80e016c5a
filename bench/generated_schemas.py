#!/usr/bin/env python3
"""Schemas as generators write them, as a list for bench/grammar_suite.py schemas.

    bench/generated_schemas.py pydantic > FILE.json      a model with one member of each of these types; needs pydantic
    bench/generated_schemas.py zod FOLDER > FILE.json    colinhacks/zod: the schemas that its tests of JSON Schema expect"""
import json
import pathlib
import re
import sys

PYDANTIC = """
bool int float str bytes complex None object Any
date datetime time timedelta
AwareDatetime NaiveDatetime PastDate FutureDate PastDatetime FutureDatetime
Decimal condecimal(max_digits=6,decimal_places=2) condecimal(gt=0,lt=100) condecimal(multiple_of=Decimal("0.25"))
conint(gt=0) conint(ge=-5,le=10) conint(multiple_of=5) PositiveInt NegativeInt NonNegativeInt NonPositiveInt StrictInt
confloat(gt=0) confloat(ge=0,le=1) confloat(multiple_of=0.5) PositiveFloat NegativeFloat NonNegativeFloat FiniteFloat StrictFloat StrictBool
constr(min_length=2,max_length=10) constr(pattern="^[a-z]+[0-9]*$") constr(pattern="^[A-Z]{2}",max_length=8) constr(to_lower=True) StrictStr
SecretStr SecretBytes conbytes(min_length=1,max_length=9) Base64Bytes Base64Str Base64UrlStr ByteSize
UUID UUID1 UUID3 UUID4 UUID5
Path FilePath DirectoryPath NewPath
IPv4Address IPv4Network IPv4Interface IPv6Address IPv6Network IPv6Interface IPvAnyAddress IPvAnyNetwork
AnyUrl AnyHttpUrl HttpUrl FileUrl FtpUrl WebsocketUrl PostgresDsn MySQLDsn RedisDsn AmqpDsn MongoDsn KafkaDsn
Pattern re.Pattern[str] Json Json[list[int]] ImportString
Literal["a"] Literal["a","b",3,None,True] Colour Level
Optional[int] Union[int,str] Union[list[int],dict[str,int],None] Annotated[int,Field(ge=1,description="n")]
list list[int] conlist(int,min_length=1,max_length=3) List[List[str]] set[str] conset(int,min_length=1) frozenset[int] deque[int]
tuple tuple[int] tuple[int,str] tuple[int,...] tuple[()] Point Sequence[int] Iterable[int]
dict dict[str,int] dict[int,str] dict[str,Any] dict[Colour,int] dict[constr(pattern="^k"),int] Mapping[str,list[float]] defaultdict[str,int]
OrderedDict[str,int] Counter[str] Movie Rectangle Inner list[Inner] dict[str,Inner] Tree Optional[Tree] Strict Extra
Pet list[Pet] Union[Inner,Strict] RootList RootModel[dict[str,int]] Type Type[Inner] Hashable
Annotated[str,StringConstraints(strip_whitespace=True,min_length=1)] Annotated[list[int],Field(max_length=5)] NewType("N",int)
Annotated[float,Field(allow_inf_nan=False)] Page[int] Annotated[Union[int,str],Field(union_mode="left_to_right")]
"""


def pydantic():
    import collections
    import datetime as dates
    import decimal
    import enum
    import ipaddress
    import pathlib as paths
    import typing
    import uuid

    import pydantic as package

    names = {"re": re, "None": None, "deque": collections.deque, "defaultdict": collections.defaultdict,
             "OrderedDict": collections.OrderedDict, "Counter": collections.Counter, "Decimal": decimal.Decimal, "Path": paths.Path,
             "UUID": uuid.UUID, "StringConstraints": package.StringConstraints}
    for module in (dates, ipaddress, typing, package):
        for name in dir(module):
            if not name.startswith("_") and not (module is typing and name in names):
                try:
                    names.setdefault(name, getattr(module, name))
                except AttributeError:
                    pass
    names |= {name: getattr(dates, name) for name in ("date", "datetime", "time", "timedelta")}

    class Colour(str, enum.Enum):
        RED = "red"
        BLUE = "blue"

    class Level(enum.IntEnum):
        LOW = 1
        HIGH = 2

    class Point(typing.NamedTuple):
        x: int
        y: float = 0

    from typing_extensions import TypedDict

    class Movie(TypedDict, total=False):
        name: str
        year: int

    import dataclasses

    @dataclasses.dataclass
    class Rectangle:
        width: float
        height: float = 1

    class Inner(package.BaseModel):
        a: int
        b: typing.Optional[str] = None

    class Strict(package.BaseModel):
        model_config = package.ConfigDict(extra="forbid")
        c: list[int]

    class Extra(package.BaseModel):
        model_config = package.ConfigDict(extra="allow")
        c: int

    class Tree(package.BaseModel):
        value: int
        children: "list[Tree]" = []

    class Cat(package.BaseModel):
        kind: typing.Literal["cat"]
        lives: int

    class Dog(package.BaseModel):
        kind: typing.Literal["dog", "wolf"]
        name: str

    class RootList(package.RootModel[list[int]]):
        pass

    T = typing.TypeVar("T")

    class Page(package.BaseModel, typing.Generic[T]):
        items: list[T]
        next: typing.Optional[str] = None

    names |= {"Colour": Colour, "Level": Level, "Point": Point, "Movie": Movie, "Rectangle": Rectangle, "Inner": Inner, "Strict": Strict,
              "Extra": Extra, "Tree": Tree, "RootList": RootList, "Page": Page,
              "Pet": typing.Annotated[typing.Union[Cat, Dog], package.Field(discriminator="kind")]}
    for text in PYDANTIC.split():
        try:
            kind = eval(text, {}, names)
            model = package.create_model("Model", value=(kind, ...))
            yield text, model.model_json_schema()
        except (package.errors.PydanticInvalidForJsonSchema, package.errors.PydanticSchemaGenerationError) as error:
            print(f"no schema: {text}: {str(error).splitlines()[0][:90]}", file=sys.stderr)


def zod(folder):
    seen = set()
    for file in sorted(pathlib.Path(folder).rglob("*json-schema*.test.ts")):
        source = file.read_text()
        found = re.findall(r"toMatchInlineSnapshot\(\s*`(.*?)`\s*\)", source, re.S) + re.findall(r"toEqual\((\{.*?\})\);", source, re.S)
        for number, text in enumerate(found):
            text = re.sub(r",(\s*[}\]])", r"\1", text.replace("\\\\", "\\").replace("\\`", "`").replace("\\${", "${"))
            text = re.sub(r"([{,]\s*)([A-Za-z$_]\w*)\s*:", r'\1"\2":', text)
            try:
                schema = json.loads(text)
            except ValueError:
                continue
            spelled = json.dumps(schema)
            if isinstance(schema, dict) and spelled not in seen:
                seen.add(spelled)
                yield f"{file.name} {number}", schema


if __name__ == "__main__":
    if sys.argv[1:2] not in (["pydantic"], ["zod"]) or len(sys.argv) != (3 if sys.argv[1] == "zod" else 2):
        sys.exit(__doc__)
    cases = zod(sys.argv[2]) if sys.argv[1] == "zod" else pydantic()
    print(json.dumps([{"name": name, "schema": schema} for name, schema in cases]))
