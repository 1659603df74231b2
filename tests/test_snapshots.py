"""A dict or set that threads share is copied by ``list(...)``, and by nothing else, before it is looked through.

While one thread runs ``list(shared.values())``, no other can change ``shared``, on every build of Python.
``tuple``, ``max``, a loop and the like go through it element by element: "dictionary changed size".
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "weblock"

MAKERS = {"dict", "set", "defaultdict", "OrderedDict", "WeakSet", "WeakKeyDictionary"}
CHANGES = {"add", "discard", "remove", "pop", "popitem", "clear", "update", "setdefault"}
ITERATING = {
    "tuple",
    "sorted",
    "set",
    "frozenset",
    "max",
    "min",
    "sum",
    "any",
    "all",
    "map",
    "filter",
}
ITERATING |= {"enumerate", "zip", "iter", "reversed", "chain", "fromkeys", "join", "select"}


def name_of(node: ast.AST) -> str | None:
    """The last name of ``a.b.c``, and of what it is subscripted or called with."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value) | ast.Call(func=value):
            return name_of(value)
    return None


def is_a_dict_or_set(value: ast.expr | None) -> bool:
    """Whether an expression makes one, or is a dataclass's field that is one."""
    match value:
        case ast.Dict() | ast.Set() | ast.DictComp() | ast.SetComp():
            return True
        case ast.Call(keywords=keywords):
            factories = [name_of(each.value) for each in keywords if each.arg == "default_factory"]
            return not MAKERS.isdisjoint([name_of(value), *factories])
    return False


def of_dicts_and_sets(statements: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """What the statements make one of."""
    for node in statements:
        match node:
            case ast.Assign(targets=targets, value=value) if is_a_dict_or_set(value):
                yield from targets
            case ast.AnnAssign(target=target, value=value) if is_a_dict_or_set(value):
                yield target


def changing_in(tree: ast.Module) -> set[str]:
    """The globals, and with a dot before them the attributes, that a module makes as dicts or sets, and changes."""
    made, changed = set[str](), set[str | None]()
    for node in ast.walk(tree):
        match node:
            case ast.Module(body=body) | ast.ClassDef(body=body):
                dot = "" if node is tree else "."
                names = [f"{dot}{name_of(each)}" for each in of_dicts_and_sets(body)]
            case _:
                names = [
                    f".{each.attr}"
                    for each in of_dicts_and_sets([node])
                    if isinstance(each, ast.Attribute)
                ]
        made.update(names)
        match node:
            case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()):
                changed.add(name_of(value))
            case ast.Attribute(attr=change, value=value) if change in CHANGES:
                changed.add(name_of(value))
    return {name for name in made if name.removeprefix(".") in changed}


def gone_through(tree: ast.Module) -> Iterator[ast.expr]:
    """Every expression of a module that is iterated over, other than by ``list``."""
    for node in ast.walk(tree):
        match node:
            case ast.For(iter=each) | ast.comprehension(iter=each) | ast.YieldFrom(value=each):
                yield each
            case ast.Call(func=function, args=given) if name_of(function) in ITERATING:
                yield from given
            case ast.Tuple(elts=elements) | ast.Set(elts=elements):
                yield from (each.value for each in elements if isinstance(each, ast.Starred))


def shared_in(node: ast.expr, shared: set[str], own: set[str]) -> str | None:
    """The name of the shared dict or set that an expression is, or is a view of, or of one that is in it.

    ``own`` are those of the module, which has those of its ``self``, too.
    """
    match node:
        case ast.Call(func=ast.Attribute(attr="values" | "items" | "keys", value=value)):
            match value:
                case ast.BoolOp(values=[ast.Call(func=ast.Attribute(value=inside)), *_]):
                    value = inside
                case ast.Call(func=ast.Attribute(attr="get", value=inside)):
                    value = inside
            return shared_in(value, shared, own)
        case ast.Name(id=name) if name in own:
            return name
        case ast.Attribute(attr=name, value=of):
            known = own if isinstance(of, ast.Name) and of.id == "self" else shared
            return name if f".{name}" in known else None
    return None


def test_what_threads_share_is_copied_by_list() -> None:
    """No dict or set that a module changes later is gone through in any other way, wherever it is used.

    Only attributes and globals count: what a function has in a variable of its own, no other thread sees.
    """
    trees = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    made = {path: changing_in(tree) for path, tree in trees.items()}
    shared = set(chain.from_iterable(made.values()))
    found = [
        f"{path.relative_to(SOURCE)}:{each.lineno}: {name}"
        for path, tree in trees.items()
        for each in gone_through(tree)
        if (name := shared_in(each, shared, made[path]))
    ]
    assert not found, "write list(...) around it"
