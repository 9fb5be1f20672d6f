"""The RLJob API: models, generated CRD, names and labels, and what the operator promises to pods."""

from longshore.api.rljob import RLJob
from longshore.api.spec import RLJobSpec
from longshore.api.status import RLJobStatus

__all__ = ["RLJob", "RLJobSpec", "RLJobStatus"]
