#!/usr/bin/env python3
"""Writes a client's REFERENCE.md from the comments in its sources: reference.py go|kotlin|python|python-outbox. With `--check` it only
compares. `--generated FILE`: the language's side of `core`, as its build wrote it. What is shown are lines of the sources as they
stand there, so that nothing but the sources decides what the page says.
"""

import argparse
import ast
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent

# Python: what a module exports, each declaration without its body.


def block(lines, first, last):
    """Lines of a source, numbered from 1, the last one included."""
    return lines[first - 1 : last]


def documented(node, lines):
    """The lines of a node's docstring."""
    first = node.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return block(lines, first.lineno, first.end_lineno) if is_text else []


def comments_above(line, lines):
    """The `#:` comments right above a line."""
    above = line - 1
    while above >= 1 and lines[above - 1].lstrip().startswith("#:"):
        above -= 1
    return block(lines, above + 1, line - 1)


def head_of(node, lines):
    """A class or a function up to its body, decorators included."""
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    shown = []
    for number in range(first, node.body[0].lineno + 1):
        line = lines[number - 1]
        shown.append(line)
        if number >= node.lineno and re.sub(r"\s+#.*$", "", line).endswith(":"):
            break
    return shown


def show_node(node, lines):
    """A declaration without its body; of a class, its fields and its methods."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        first = lines[node.lineno - 1]
        is_short = node.end_lineno == node.lineno
        shown = [first] if is_short else [re.sub(r"\s*=.*$", "", first) + " = …"]
        return [*comments_above(node.lineno, lines), *shown]
    shown = [*head_of(node, lines), *documented(node, lines)]
    if isinstance(node, ast.ClassDef):
        for at, member in enumerate(node.body):
            is_field = isinstance(member, (ast.Assign, ast.AnnAssign))
            name = getattr(member, "name", None) or (name_of(member) if is_field else "_")
            if not name.startswith("_") or name == "__init__":
                shown += show_node(member, lines)
                following = node.body[at + 1] if at + 1 < len(node.body) else None
                if is_field and isinstance(following, ast.Expr):
                    shown += block(lines, following.lineno, following.end_lineno)
    return shown


def core_comments():
    """The comments on the fields of the core's types, which UniFFI leaves out in Python: by type and field."""
    found, kind, comment = {}, None, []
    sources = [(HERE / "core/src" / name).read_text() for name in ("types.rs", "import.rs")]
    for line in "\n".join(sources).split("\n"):
        if begun := re.match(r"pub (?:struct|enum) (\w+)", line):
            kind = begun[1]
        if said := re.match(r" +/// (.*)", line):
            comment.append(said[1])
        elif field := re.match(r" +(?:pub )?(\w+): ", line):
            found.setdefault((kind, field[1]), comment)
            comment = []
        elif not line.strip().startswith("#["):
            comment = []
    return found


def show_generated(node, comments, indent="", outer=None):
    """A type that UniFFI wrote: its comment, its fields or values with theirs, and its variants."""
    bases = ", ".join(ast.unparse(base).replace("_UniffiTemp", "") for base in node.bases)
    yield f"{indent}class {node.name}{f'({bases})' if bases else ''}:"
    indent += "    "
    yield f'{indent}"""{" ".join((ast.get_docstring(node) or "").split())}"""'
    for at, member in enumerate(node.body):
        following = node.body[at + 1] if at + 1 < len(node.body) else None
        if isinstance(member, ast.ClassDef):
            yield from show_generated(member, comments, indent, outer or node.name)
        elif isinstance(member, ast.FunctionDef) and member.name == "__init__":
            for argument in [*member.args.args[1:], *member.args.kwonlyargs]:
                yield from (f"{indent}#: {line}" for line in comments.get((outer or node.name, argument.arg), []))
                kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
                yield f"{indent}{argument.arg}{kind}".replace("typing.", "")
        elif isinstance(member, ast.Assign) and isinstance(following, ast.Expr) and not name_of(member).startswith("_"):
            yield f"{indent}#: {' '.join(following.value.value.split())}"
            yield f"{indent}{name_of(member)} = {ast.unparse(member.value)}"


def name_of(node):
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
    return target.id if isinstance(target, ast.Name) else "_"


class Source:
    """A Python file: its lines, and where its names are."""

    def __init__(self, path):
        text = path.read_text()
        self.path, self.lines, self.tree = path, text.split("\n"), ast.parse(text)

    def find(self, name):
        """The node of a name, or the module that it comes from. Of classes the last one counts: UniFFI writes errors twice."""
        classes = [node for node in self.tree.body if isinstance(node, ast.ClassDef) and node.name == name]
        for node in [*classes[-1:], *self.tree.body]:
            if getattr(node, "name", None) == name or isinstance(node, (ast.Assign, ast.AnnAssign)) and name_of(node) == name:
                return node
            if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
                return node.module
        sys.exit(f"reference.py: {self.path} has no {name}")

    def exported(self):
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and name_of(node) == "__all__":
                return ast.literal_eval(node.value)
        return None


def python_module(folder, module, names, generated):
    """What one module exports, each name where it is written."""
    path = folder.joinpath(*module.split("."))
    source = Source(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))
    yield f"## {module}"
    yield ""
    for name in sorted(names or source.exported()):
        found, at = source.find(name), source
        while isinstance(found, str):
            parts = found.split(".")
            at = Source(generated if parts[0] == "_core" else at.path.parent.joinpath(*parts).with_suffix(".py"))
            found = at.find(name)
        shown = show_generated(found, core_comments()) if at.path == generated else show_node(found, at.lines)
        yield from [f"### {name}", "", "```python", *shown, "```", ""]


# Kotlin: declarations with their comments, without bodies; of a type, its members.

KOTLIN = re.compile(
    r"^ *(?:(?:public|abstract|open|data|sealed|enum|value|suspend|override|operator|const|fun|companion) )*"
    r"(fun|interface|class|object|val|var)\b"
)


def cut(declaration):
    """A declaration without its body: up to the brace, or the sign of equality outside of all parentheses."""
    depth = 0
    for at, sign in enumerate(declaration):
        depth += {"(": 1, "<": 0, ")": -1}.get(sign, 0)
        if depth == 0 and (sign == "{" or re.match(r" =(\s|$)", declaration[at:])):
            return declaration[:at].rstrip(), sign == "{"
    return declaration.rstrip(), False


def kotlin_file(path, is_generated=False):
    """The public declarations of a file, as `(name, lines)` for those at its top. Of what UniFFI wrote, the types of values: the rest
    is its own."""
    lines = path.read_text().split("\n")
    found, comment, open_types, at = [], [], [], 0
    while at < len(lines):
        line = lines[at]
        indent = len(line) - len(line.lstrip())
        if open_types and line.rstrip() == " " * open_types[-1] + "}":
            open_types.pop()
        is_member = indent == (open_types[-1] + 4 if open_types else 0)
        if is_member and line.lstrip().startswith("/**"):
            first = at
            while "*/" not in lines[at]:
                at += 1
            comment = lines[first : at + 1]
        elif is_member and KOTLIN.match(line):
            declaration = line
            while declaration.count("(") > declaration.count(")"):
                at += 1
                declaration += "\n" + lines[at]
            shown, has_body = cut(declaration)
            is_type = re.match(r"^ *(?:\w+ )*(interface|class|object)\b", line)
            is_value = comment and "@suppress" not in "".join(comment) and re.match("(data|enum|sealed) class", line)
            is_shown = " override " not in line if open_types and is_generated else open_types or not is_generated or is_value
            if is_shown:
                if not open_types:
                    name = re.search(r"(?:fun(?! interface)|interface|class|object|val|var) +(?:<[^>]*> )?(\w+)", line)[1]
                    found.append((name, []))
                found[-1][1].extend([*comment, shown])
            if is_type and has_body and is_shown and not lines[at].rstrip().endswith("}"):
                open_types.append(indent)
            comment = []
        elif is_member and open_types and re.match(r"^ *[A-Z_]+[,;]?$", line):
            # A value of an enumeration.
            found[-1][1].extend([*comment, line.rstrip(",;")])
            comment = []
        elif is_member and line.strip() and not line.lstrip().startswith("@"):
            comment = []
        at += 1
    return found


def plain(lines):
    """What UniFFI wrote, as a person would have."""
    text = "\n".join(lines)
    for wordy, short in [
        (r"(va[lr] )`(\w+)`", r"\1\2"),
        (r"\b(kotlin|dev\.semel)\.", ""),
        (r"\s+,", ","),
        (r"\n\s*\n", "\n"),
        (r"class (\w+) \(", r"class \1("),
        (r"/\*\*\n\s*\* (.*)\n\s*\*/", r"/** \1 */"),
        (r"\n *companion object$", ""),
    ]:
        text = re.sub(wordy, short, text)
    return text.split("\n")


def kotlin_page(generated):
    sources = HERE / "kotlin/src/main/kotlin/dev/semel"
    found = [*kotlin_file(sources / "Outbox.kt"), *kotlin_file(sources / "Actions.kt")]
    types = [(name, plain(lines)) for name, lines in kotlin_file(generated, is_generated=True)]
    for title, declarations in [("The library", found), ("What it takes and gives", sorted(types))]:
        yield f"## {title}"
        yield ""
        for name, lines in declarations:
            yield from [f"### {name}", "", "```kotlin", *"\n".join(lines).split("\n"), "```", ""]


def go_page():
    text = subprocess.run(["go", "doc", "-all", "."], cwd=HERE / "go", check=True, capture_output=True, text=True).stdout
    yield from ["```text", *text.rstrip("\n").split("\n"), "```", ""]


def page(client, generated):
    if client == "go":
        yield from go_page()
    elif client == "kotlin":
        yield from kotlin_page(generated)
    elif client == "python":
        folder = HERE / "python/src"
        for module, names in [("semel", None), ("semel.asgi", None), ("semel.django", ["once"])]:
            yield from python_module(folder, module, names, None)
    else:
        yield from python_module(HERE / "python-outbox/src", "semel_outbox", None, generated)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=["go", "kotlin", "python", "python-outbox"])
    parser.add_argument("--generated", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    head = ["# What the library exports", "", "Written from the sources by `clients/reference.py`: do not edit.", ""]
    text = "\n".join(line.rstrip() for line in [*head, *page(asked.client, asked.generated)])
    target = HERE / asked.client / "REFERENCE.md"
    if not asked.check:
        target.write_text(text)
    elif not target.exists() or target.read_text() != text:
        generated = f" --generated {asked.generated}" if asked.generated else ""
        sys.exit(f"{target} is not what the sources say: run `python3 clients/reference.py {asked.client}{generated}`")


if __name__ == "__main__":
    main()
