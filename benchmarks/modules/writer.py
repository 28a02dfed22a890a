"""Programs as StableHLO text. `Writer` writes them plain; what annotates a program overrides its hooks."""

from __future__ import annotations

from .programs import Body, Node, Tensor

_I32 = "tensor<i32>"


class Writer:
    """One module's text. Every value and function gets a name of its own."""

    def __init__(self) -> None:
        self._count = 0
        self.functions: list[str] = []

    # ------------------------------------------------------------------------------------------ hooks
    def top(self) -> list[str]:
        """Lines before the functions."""
        return []

    def module_attributes(self) -> str:
        return ""

    def argument(self, type: Tensor, public: bool) -> str:
        """The attribute dictionary of a function's argument, or ""."""
        return ""

    def result(self, type: Tensor, public: bool) -> str:
        return ""

    def attributes(self, type: Tensor) -> str:
        """What to add to the attributes of an op with one result."""
        return ""

    def after(self, name: str, type: Tensor, lines: list[str]) -> str:
        """The name under which ops behind know the value `name`."""
        return name

    def before_return(self, name: str, type: Tensor, lines: list[str]) -> str:
        """The name of what `main` returns for `name`."""
        return name

    # ------------------------------------------------------------------------------------------ writing
    def module(self, body: Body) -> str:
        self.functions.append(self.function("main", body, public=True))
        head = [self.module_attributes() and f"attributes {{{self.module_attributes()}}}", "{"]
        return " ".join(["module", *head]) + "\n" + "\n".join([*self.top(), *self.functions]) + "\n}\n"

    def fresh(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def function(self, name: str, body: Body, public: bool = False) -> str:
        args = [(self.fresh(), t) for t in body.args]
        head = ", ".join(f"{n}: {t}{_braces(self.argument(t, public))}" for n, t in args)
        types = [body.type_of(v) for v in body.returns]
        results = ", ".join(f"{t}{_braces(self.result(t, public))}" for t in types)
        lines: list[str] = []
        returned = self.body(body, [n for n, _ in args], lines)
        if public:
            returned = [self.before_return(n, t, lines) for n, t in zip(returned, types, strict=True)]
        lines.append(f"return {', '.join(returned)} : {', '.join(map(str, types))}")
        kind = "" if public else "private "
        inner = "\n".join(f"  {line}" for line in lines)
        return f"func.func {kind}@{name}({head}) -> ({results}) {{\n{inner}\n}}"

    def body(self, body: Body, names: list[str], lines: list[str]) -> list[str]:
        """Writes the nodes; `names` are those of the arguments. The names of what the body returns."""
        names = list(names)
        for node in body.nodes:
            name = self.node(node, [names[v] for v in node.operands], body, lines)
            names.append(self.after(name, node.type, lines))
        return [names[v] for v in body.returns]

    def node(self, node: Node, operands: list[str], body: Body, lines: list[str]) -> str:
        types = [body.type_of(v) for v in node.operands]
        if node.kind == "while":
            return self._while(node, operands[0], lines)
        if node.kind == "case":
            return self._case(node, operands[0], lines)
        name = self.fresh()
        if node.kind == "call":
            callee = f"f{name[2:]}"
            self.functions.append(self.function(callee, node.bodies[0]))
            lines.append(f"{name} = {self.call(callee, operands, types, node.type)}")
            return name
        start, _, region = node.regions.partition("|")
        if start:
            scalar = Tensor((), node.type.dtype)
            operands = [*operands, self.constant(start, scalar, lines)]
            types = [*types, scalar]
        attrs = ", ".join(filter(None, (node.attrs, self.attributes(node.type))))
        signature = f"({', '.join(map(str, types))}) -> {node.type}"
        lines.append(
            f'{name} = "stablehlo.{node.kind}"({", ".join(operands)}) {region}{_braces(attrs)} : {signature}'
        )
        return name

    def call(self, callee: str, operands: list[str], types: list[Tensor], result: Tensor) -> str:
        attrs = self.attributes(result)
        return f"call @{callee}({', '.join(operands)}){_braces(attrs)} : ({', '.join(map(str, types))}) -> {result}"

    def constant(self, value: str, type: Tensor, lines: list[str]) -> str:
        name = self.fresh()
        lines.append(f"{name} = stablehlo.constant dense<{value}> : {type}")
        return name

    def _while(self, node: Node, start: str, lines: list[str]) -> str:
        zero = self.constant("0", Tensor((), "i32"), lines)
        name, x, i, limit, going = (self.fresh() for _ in range(5))
        inner: list[str] = []
        (out,) = self.body(node.bodies[0], [x], inner)
        one = self.constant("1", Tensor((), "i32"), inner)
        following = self.fresh()
        types = f"{node.type}, {_I32}"
        arguments = f"^bb0({x}: {node.type}, {i}: {_I32}):"
        lines += [
            f'{name}:2 = "stablehlo.while"({start}, {zero}) ({{',
            arguments,
            f"{limit} = stablehlo.constant dense<3> : {_I32}",
            f"{going} = stablehlo.compare LT, {i}, {limit} : ({_I32}, {_I32}) -> tensor<i1>",
            f"stablehlo.return {going} : tensor<i1>",
            f"}}, {{ {arguments}",
            *inner,
            f"{following} = stablehlo.add {i}, {one} : {_I32}",
            f"stablehlo.return {out}, {following} : {types}",
            f"}}) : ({types}) -> ({types})",
        ]
        return f"{name}#0"

    def _case(self, node: Node, captured: str, lines: list[str]) -> str:
        index = self.constant("1", Tensor((), "i32"), lines)
        name = self.fresh()
        branches: list[str] = []
        for body in node.bodies:
            inner: list[str] = []
            (out,) = self.body(body, [captured], inner)
            branches.append("\n".join(["{", *inner, f"stablehlo.return {out} : {node.type}", "}"]))
        attrs = _braces(self.attributes(node.type))
        lines.append(
            f'{name} = "stablehlo.case"({index}) ({", ".join(branches)}){attrs} : ({_I32}) -> {node.type}'
        )
        return name


def _braces(attrs: str) -> str:
    return f" {{{attrs}}}" if attrs else ""
