"""Reads which functions of a Python file are tools of verl. Nothing is run."""

import ast


def names(text: str) -> list[str]:
    """Return the functions with the decorator `function_tool`; raises SyntaxError and ValueError."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node.name for node in ast.parse(text).body if isinstance(node, kinds) and _is_tool(node)]


def _is_tool(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorators = (one.func if isinstance(one, ast.Call) else one for one in function.decorator_list)
    return any(ast.unparse(one).rpartition(".")[2] == "function_tool" for one in decorators)
