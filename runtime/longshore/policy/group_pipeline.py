"""Group pipeline (RolloutPipe, section 3): trainable groups reach the trainer while later groups still run."""

from longshore.policy.synchronous import Synchronous


class GroupPipeline(Synchronous):
    """Every group of the round is sampled and accepted; what is special lies at its two ends.

    Frontier-group dispatch (section 3.3): only the F_w groups of lowest order that are not served are in service. A
    request is admitted if and only if its group is among them (`Gates.frontier_width`); a group that is served frees
    its slot. Complete-group pipelining (section 3.2): `policy.handover` passes trainable groups on in FIFO order.
    """
