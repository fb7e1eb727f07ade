"""Makes mutants of files with the operators of mutmut; runs in the environment that has mutmut.

The first argument is a JSON file to write, the others are files of Python. The JSON is a list of
``{path, line, function, at, length, text, change}``: at byte ``at`` of the file, ``text`` takes
the place of ``length`` bytes. ``function`` is the outermost function that the change is in, None
for what runs when the module is imported. ``change`` shows what changes, on one line.

mutmut has no operator for a condition of ``if`` that is always true or false, nor for a statement,
an operand or an element that is left out: these are here. No mutants, because no test should find
them:

- texts: string literals, and what stands in an f-string with a blank, in ``repr``, in a log line
  or in an attribute of a span;
- annotations, ``cast``, decorators, ``TYPE_CHECKING``, ``__all__``, docstrings;
- None in place of an argument or of what is assigned: strict types find it;
- a number of ten or more, with a fraction, or of a module's constant, that is one greater: a limit
  of 101 for 100, five tries for four.
"""

# mypy: disable-error-code="import-not-found, misc"
from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import (
    mutation_operators,
    operator_arg_removal,
    operator_assignment,
    operator_if_exp,
    operator_number,
    operator_string,
)

AROUND = 40
"""So many characters before and after a change are part of what names it."""
LOGGERS = {"log"}


def without(node: cst.BaseSmallStatement) -> Iterable[cst.CSTNode]:
    """Leave a statement out."""
    if not (isinstance(node, cst.Return) and node.value):
        yield cst.Pass()


def arguments(node: cst.Call) -> Iterable[cst.Call]:
    """Leave an argument out; but for texts, and for what types find anyway: None in its place."""
    for mutated in operator_arg_removal(node):
        lost = [argument for argument in node.args if argument not in mutated.args]
        if len(mutated.args) < len(node.args) and not any(is_text(each.value) for each in lost):
            yield mutated


def operands(node: cst.BooleanOperation) -> Iterable[cst.CSTNode]:
    """Leave one side of ``and`` and ``or`` out."""
    yield node.left
    yield node.right


def elements(node: cst.Tuple | cst.List | cst.Set) -> Iterable[cst.CSTNode]:
    """Leave an element out."""
    for place in range(len(node.elements) if len(node.elements) > 1 else 0):
        if not is_text(node.elements[place].value):
            yield node.with_changes(elements=[*node.elements[:place], *node.elements[place + 1 :]])


def number(node: cst.BaseNumber) -> Iterable[cst.BaseNumber]:
    """Make a small number one greater."""
    if isinstance(node, cst.Integer) and node.evaluated_value < 10:
        yield from operator_number(node)


REPLACED = {operator_arg_removal: arguments, operator_number: number}
OPERATORS: list[tuple[Any, Any]] = [
    *(
        (kind, REPLACED.get(operator, operator))
        for kind, operator in mutation_operators
        if operator not in {operator_string, operator_assignment}
    ),
    (cst.If | cst.CompIf, operator_if_exp),
    (cst.BooleanOperation, operands),
    (cst.Tuple | cst.List | cst.Set, elements),
    (cst.Expr | cst.Raise | cst.Return | cst.AugAssign, without),
]


def is_text(node: cst.CSTNode) -> bool:
    """Whether an expression is wording: a literal with a blank."""
    if isinstance(node, cst.ConcatenatedString):
        return True
    if isinstance(node, cst.SimpleString):
        return " " in node.value
    parts = node.parts if isinstance(node, cst.FormattedString) else ()
    return any(isinstance(part, cst.FormattedStringText) and " " in part.value for part in parts)


def is_noise(node: cst.CSTNode) -> bool:
    """Whether nothing in a node is worth a mutant."""
    noise = False
    match node:
        case cst.Annotation() | cst.Decorator() | cst.Import() | cst.ImportFrom():
            noise = True
        case cst.Expr(value=cst.BaseString() | cst.Ellipsis()):
            noise = True
        case cst.Expr(value=cst.Call(func=cst.Attribute(value=cst.Name(value=name)))):
            noise = name in LOGGERS
        case cst.If(test=cst.Name(value="TYPE_CHECKING")):
            noise = True
        case cst.FunctionDef(name=cst.Name(value="__repr__" | "__str__")):
            noise = True
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))]):
            noise = name in LOGGERS | {"__all__"}
        case cst.Call(func=cst.Attribute(value=cst.Name(value="tracing"))):
            noise = True
        case cst.Call(func=cst.Name(value=name)):
            noise = name in {"len", "isinstance", "cast", "TypeVar", "NewType"}  # as mutmut does
    return noise or is_text(node)


class Maker(cst.CSTVisitor):
    """Collects the mutants of one file."""

    METADATA_DEPENDENCIES = (PositionProvider, ByteSpanPositionProvider)

    def __init__(self, path: str, source: bytes, module: cst.Module) -> None:
        self.mutants: list[dict[str, object]] = []
        self._path, self._source, self._module = path, source, module
        self._names: list[str] = []
        self._functions: list[str] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Mutate a node."""
        is_alias = isinstance(node, cst.Assign) and isinstance(node.value, cst.Subscript)
        if is_noise(node) or (is_alias and not self._names):  # an alias of a type
            return False
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._names.append(node.name.value)
        for kind, operator in OPERATORS:
            if isinstance(node, kind) and (self._names or operator is not number):
                for mutated in operator(node):
                    self._add(node, mutated)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        """Leave the scope of a node."""
        if isinstance(original_node, cst.FunctionDef | cst.ClassDef) and not is_noise(
            original_node
        ):
            self._names.pop()

    def on_visit_attribute(self, node: cst.CSTNode, attribute: str) -> None:
        """Enter the body of a function."""
        if isinstance(node, cst.FunctionDef) and attribute == "body":
            self._functions.append(".".join(self._names))

    def on_leave_attribute(self, original_node: cst.CSTNode, attribute: str) -> None:
        """Leave the body of a function."""
        if isinstance(original_node, cst.FunctionDef) and attribute == "body":
            self._functions.pop()

    def _add(self, node: cst.CSTNode, mutated: cst.CSTNode) -> None:
        if isinstance(node, cst.If | cst.CompIf | cst.IfExp):
            node, mutated = node.test, mutated.test
        line = self.get_metadata(PositionProvider, node).start.line
        if isinstance(node, cst.Match):  # blocks have no text of their own: the whole file
            changed = self._module.deep_replace(node, mutated)
            assert isinstance(changed, cst.Module)
            at, length, text = 0, len(self._source), changed.code
        else:
            span = self.get_metadata(ByteSpanPositionProvider, node)
            at, length, text = span.start, span.length, self._module.code_for_node(mutated)
        before, after = self._source[:at].decode(), self._source[at + length :].decode()
        old = self._source[at : at + length].decode()
        try:
            compile(before + text + after, self._path, "exec", dont_inherit=True)
        except SyntaxError:
            return
        change = shown(before, old, text, after)
        self.mutants.append(
            {
                "path": self._path,
                "line": line,
                "function": self._functions[0] if self._functions else None,
                "at": at,
                "length": length,
                "text": text,
                "change": change,
            }
        )


def shown(before: str, old: str, new: str, after: str) -> str:
    """Return a change with some text around it, on one line: ``a [-b-]{+c+} d``."""
    olds, news = tokens(old), tokens(new)
    head = common(olds, news)
    tail = common(olds[head:][::-1], news[head:][::-1])
    parts = [olds[:head], olds[head : len(olds) - tail], olds[len(olds) - tail :]]
    start, removed, end = map("".join, parts)
    added = "".join(news[head : len(news) - tail])
    start = (line(before.rpartition("\n")[2]) + start)[-AROUND:].lstrip()
    end = (end + line(after.partition("\n")[0].partition("  #")[0]))[:AROUND].rstrip()
    return f"{start}[-{removed}-]{{+{added}+}}{end}"


def line(text: str) -> str:
    """Return a text with single blanks."""
    return re.sub(r"\s+", " ", text)


def tokens(text: str) -> list[str]:
    """Return the words, signs and blanks of some code."""
    return re.findall(r"\w+|[^\w\s]| ", line(text))


def common(olds: Sequence[str], news: Sequence[str]) -> int:
    """Return how many tokens two texts begin with."""
    pairs = zip(olds, news, strict=False)
    different = (at for at, (old, new) in enumerate(pairs) if old != new)
    return next(different, min(len(olds), len(news)))


def main(target: str, paths: Sequence[str]) -> None:
    """Write the mutants of files."""
    mutants = []
    for path in paths:
        source = Path(path).read_bytes()
        wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
        maker = Maker(path, source, wrapper.module)
        wrapper.visit(maker)
        mutants += maker.mutants
    Path(target).write_text(json.dumps(mutants))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
