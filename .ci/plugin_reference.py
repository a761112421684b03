"""Write docs/plugins/reference.md: all that ``gpulayer.plugins`` and ``gpulayer.testing`` export, as the code has it.

    python .ci/plugin_reference.py

A test compares the page with what this makes, so it is written again when a contract changes. Rendered here, and not
where the site is built: the page is also read in the repository.
"""

import ast
import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "gpulayer-core" / "src"
PAGE: Final = ROOT / "docs" / "plugins" / "reference.md"

_HEAD: Final = """# Reference

The contracts, the values that they speak of, and the test kit, as they stand in the code. Import the names from \
`gpulayer.plugins` and `gpulayer.testing`; the modules that they come from may change. [What stays](compatibility.md).

<!-- made by .ci/plugin_reference.py; change the docstrings -->
"""

# Titles are words whose anchor is themselves, on every host. Links of other pages lead to them.
_CONTRACTS: Final = {
    "Context": "plugins.contracts.context",
    "Probe": "plugins.contracts.probe",
    "Framework": "plugins.contracts.framework",
    "Environment": "plugins.contracts.environment",
    "Launcher": "plugins.contracts.launcher",
    "Stager": "plugins.contracts.stager",
    "Scorer": "plugins.contracts.scorer",
    "Provider": "plugins.contracts.provider",
    "Problem": "plugins.contracts.problem",
    "Event": "plugins.contracts.event",
}
_KIT: Final = {
    "Fixtures": "testing.fixtures",
    "Plane": "testing.plane",
    "Fleet": "testing.fleet",
    "Inputs": "testing.values",
    "Packages": "testing.distribution",
    "Broken": "testing.broken",
}
_CONTRACT_CLASSES: Final = "gpulayer.testing.contracts"


def render() -> str:
    plugins, kit = importlib.import_module("gpulayer.plugins"), importlib.import_module("gpulayer.testing")
    left = {name: _home(plugins, name) for name in plugins.__all__}
    parts = [_HEAD]
    for title, module in _CONTRACTS.items():
        parts += _section(title, module, left)
    parts += ["## Values\n", "What contracts speak of, and what a plugin's module needs.\n"]
    for name in sorted(left):
        parts += _entry(_tree(left[name][0]), left[name][1])
    left = {name: _home(kit, name) for name in kit.__all__}
    parts += ["## Contracts\n", "The test kit: a class of tests for each contract, to be subclassed.\n"]
    for name in sorted(
        (name for name in left if name.endswith("Contract")), key=lambda name: (name != "Contract", name)
    ):
        parts += _entry(_tree(left[name][0]), left.pop(name)[1])
    for title, module in _KIT.items():
        parts += _section(title, module, left)
    assert not left, f"no section has {', '.join(left)}"
    return "\n".join(parts).rstrip() + "\n"


def _home(face: ModuleType, name: str) -> tuple[str, str]:
    """The module that defines it, and its name there: by its ``from … import``s, as a reader would find it."""
    at = face.__name__
    thing = getattr(face, name)
    module = getattr(thing, "__module__", "")
    if not module.startswith("gpulayer."):  # a constant, or something of pluggy's
        homes = {"API_VERSION": "plugins.hooks", "hookimpl": "plugins.hooks", "BROKEN": "testing.broken"}
        module = f"gpulayer.{homes[name]}"
    assert module != at, name
    return module, name


def _section(title: str, module: str, left: dict[str, tuple[str, str]]) -> Iterator[str]:
    """What a module exports, of the test kit what its face does too, and fixtures; takes it out of ``left``."""
    tree = _tree(f"gpulayer.{module}")
    yield f"## {title}\n"
    said = ast.get_docstring(tree)
    if said:
        yield _prose(said) + "\n"
    exported = importlib.import_module(f"gpulayer.{module}").__all__
    for name in exported:
        if name not in left and module.startswith("testing.") and module != _KIT["Fixtures"]:
            continue
        home = left.pop(name, (f"gpulayer.{module}", name))[0]
        yield from _entry(_tree(home), name)


def _entry(tree: ast.Module, name: str) -> Iterator[str]:
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        match node:
            case ast.ClassDef(name=found) | ast.FunctionDef(name=found) if found == name:
                yield f"### {name}\n"
                said = ast.get_docstring(node)
                if said:
                    yield _prose(said) + "\n"
                yield _code(_stub(node, is_top=True))
                return
            case ast.Assign(targets=[ast.Name(id=found)]) | ast.AnnAssign(target=ast.Name(id=found)) if found == name:
                yield f"### {name}\n"
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                    yield _prose(str(after.value.value)) + "\n"
                yield _code([_constant(node)])
                return
    raise AssertionError(f"{name} is not defined where it says")


def _stub(node: ast.stmt, *, is_top: bool = False) -> Iterator[str]:
    """Its lines without bodies; of what is in a class all that is public, with its docstring."""
    match node:
        case ast.ClassDef():
            yield from (f"@{ast.unparse(one)}" for one in node.decorator_list)
            bases = [*map(ast.unparse, node.bases), *map(ast.unparse, node.keywords)]
            yield f"class {node.name}" + (f"({', '.join(bases)})" if bases else "") + ":"
            shown = [one for one in node.body if _is_public(one)]
            for number, one in enumerate(shown):
                if number and not (_is_field(one) and _is_field(shown[number - 1])):
                    yield ""
                yield from (f"    {line}".rstrip() for line in _stub(one))
            if not shown:
                yield "    ..."
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from (f"@{ast.unparse(one)}" for one in node.decorator_list)
            head = ast.unparse(
                ast.FunctionDef(**{**vars(node), "decorator_list": [], "body": [ast.Expr(ast.Constant(...))]})
            )
            said = None if is_top else ast.get_docstring(node)
            *lines, last = _wrapped(head.partition("\n")[0].removesuffix(":"), node)
            yield from (*lines, last + (":" if said else ": ..."))
            if said:
                lines = said.split("\n")
                yield f'    """{lines[0]}' + ('"""' if len(lines) == 1 else "")
                yield from (f"    {line}".rstrip() for line in lines[1:])
                if len(lines) > 1:
                    yield '    """'
        case _:
            yield ast.unparse(node)


def _wrapped(head: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """A signature that is wide gets a line an argument, as in the source."""
    if len(head) <= 100:
        return [head]
    args = node.args
    plain = [*args.posonlyargs, *args.args]
    shown = [
        *_arguments(plain, [None] * (len(plain) - len(args.defaults)) + list(args.defaults)),
        *([f"*{ast.unparse(args.vararg)}"] if args.vararg else ["*"] if args.kwonlyargs else []),
        *_arguments(args.kwonlyargs, args.kw_defaults),
        *([f"**{ast.unparse(args.kwarg)}"] if args.kwarg else []),
    ]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return [f"def {node.name}(", *(f"    {one}," for one in shown), f"){returns}"]


def _arguments(names: Iterable[ast.arg], defaults: Iterable[ast.expr | None]) -> Iterator[str]:
    for name, default in zip(names, defaults, strict=True):
        yield ast.unparse(name) + ("" if default is None else f" = {ast.unparse(default)}")


def _is_public(node: ast.stmt) -> bool:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name == "__init__" or not name.startswith("_")
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return not name.startswith("_")
        case ast.Expr():
            return False  # docstrings stand with what they are of
    return isinstance(node, ast.ClassDef)


def _is_field(node: ast.stmt) -> bool:
    return not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _constant(node: ast.Assign | ast.AnnAssign) -> str:
    match node:
        case ast.AnnAssign(value=ast.Constant() | ast.BinOp()):
            return ast.unparse(node)
        case ast.AnnAssign():
            return f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)}"
    return ast.unparse(node)


def _prose(said: str) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", said)


def _code(lines: Iterable[str]) -> str:
    return "```py\n" + "\n".join(lines) + "\n```\n"


def _tree(module: str) -> ast.Module:
    path = SOURCE / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.path.insert(0, str(SOURCE))
    PAGE.write_text(render(), encoding="utf-8")
