"""`python -m longshore_operator`."""

from longshore_operator.main import main

main()
