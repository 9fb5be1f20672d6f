"""A newer version of the operator, as a program: its API has one more field, with a default."""

from pydantic.fields import FieldInfo

from longshore.api.rljob import RLJob
from longshore.api.spec import RLJobSpec

NEW_FIELD = "novelty"


def add_field() -> None:
    """Every spec that is read from now on has the field."""
    RLJobSpec.__pydantic_fields__[NEW_FIELD] = FieldInfo(annotation=int, default=3)
    for model in (RLJobSpec, RLJob):
        model.model_rebuild(force=True)


if __name__ == "__main__":
    add_field()
    from longshore_operator.main import main

    main()
