"""A small asyncio client of the Kubernetes API, which every other package uses and which knows nothing of Longshore.

`Access` says where an API server is and who asks. `Client` sends requests, `Reflector` follows a collection, and
`Blocking` offers both to code without an event loop. Modules are imported by name: reading a quantity needs no HTTP.
"""
