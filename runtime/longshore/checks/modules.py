"""Whether Python files can be the modules of a job, from their text alone: nothing is imported."""

import ast
import keyword
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from longshore.api.objectives.custom import Custom
from longshore.api.spec import RLJobSpec

MAX_BYTES: Final = 1 << 20
"""Most bytes of all files together, which is what a ConfigMap holds."""


def module_mistakes(files: Mapping[str, bytes], import_paths: Mapping[str, str]) -> list[str]:
    """Return what keeps files from being imported as modules, and functions from being found in them.

    Args:
        files: content by file name.
        import_paths: of each function or class, by the field that names it (`import_paths`).
    """
    mistakes = [mistake for name, content in files.items() for mistake in _file_mistakes(name, content)]
    if (size := sum(map(len, files.values()))) > MAX_BYTES:
        mistakes.append(
            f"the files have {size:,} bytes together, and a ConfigMap holds {MAX_BYTES:,}; leave some out, or build an "
            "image with them"
        )
    return mistakes or list(_function_mistakes(files, import_paths))


def import_paths(spec: RLJobSpec) -> dict[str, str]:
    """Return the path of each function or class of the user's own, by the field that names it.

    Words of a command, and of an id of verifiers, may be modules: they are paths without a name behind the module.
    """
    paths = {
        f"reward.functions[{function.name}].importPath": function.import_path
        for function in spec.reward.functions
        if function.import_path is not None
    }
    for one in spec.environments:
        if one.import_path is not None:
            paths[f"environments[{one.name}].importPath"] = one.import_path
        paths |= {f"environments[{one.name}].tools[{number}]": path for number, path in enumerate(one.tools or ())}
        program = " ".join(one.command or ()) if one.verifiers is None else one.verifiers.id.replace("-", "_").lower()
        paths |= {f"{one.code_field}, {word}": word for word in re.findall(r"\w+", program)}
    if isinstance(spec.algorithm.objective, Custom):
        paths["algorithm.objective.importPath"] = spec.algorithm.objective.import_path
    return paths


def _file_mistakes(name: str, content: bytes) -> Iterator[str]:
    module, dot, ending = name.rpartition(".")
    if not dot or ending != "py" or not module.isascii() or not module.isidentifier() or keyword.iskeyword(module):
        yield f"{name}: a module needs a name as my_rewards.py, of letters, digits and underscores; rename the file"
    elif module in sys.stdlib_module_names:
        yield f"{name}: Python has a standard module {module}; rename the file"
    else:
        try:
            content.decode()
            ast.parse(content, name)
        except UnicodeDecodeError:
            yield f"{name}: the file is not UTF-8; save it as UTF-8"
        except SyntaxError as error:
            yield f"{name}, line {error.lineno or 1}: not valid Python ({error.msg})"
        except ValueError as error:
            yield f"{name}: not valid Python ({error})"


def _function_mistakes(files: Mapping[str, bytes], import_paths: Mapping[str, str]) -> Iterator[str]:
    """Yield mistakes of functions whose module is among the files; others may be in the image."""
    modules = {name.removesuffix(".py"): content for name, content in files.items()}
    used = set()
    for field, path in import_paths.items():
        module, _, wanted = path.partition(":")
        used.add(module)
        if wanted and module in modules and wanted not in (defined := _defined(modules[module])):
            known = f"; it has {', '.join(sorted(defined))}" if defined else ""
            yield f"{field}: {module}.py defines no {wanted!r}{known}"
    if not used & modules.keys():
        yield (
            "no importPath, tool or command of a reward function, an environment or the objective leads into "
            f"{', '.join(sorted(files))}; set one to {min(modules)}:NAME"
        )


def _defined(content: bytes) -> set[str]:
    """Return names that a module has once it is imported, as far as its text shows."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return found
