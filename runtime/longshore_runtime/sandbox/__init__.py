"""The sandbox: runs model-written Python against test cases, and judges what it did from outside."""
