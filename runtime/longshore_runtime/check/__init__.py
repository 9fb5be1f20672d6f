"""The part of `longshore check` that needs packages of the runtime: tokenizer, prompts, references, code of users.

The command line runs it as a process of its own, `python -m longshore_runtime.check`: a request as JSON comes in, one
JSON line for each check goes out. Every check calls what the coordinator calls when the job starts.
"""
