"""Select torch's attention kernels."""

import torch


def allow_new_shapes() -> None:
    """Turn off cuDNN's attention in this process, which torch prefers on Hopper and Blackwell.

    cuDNN makes a plan for every shape that it has not seen, which takes about a second, forward and backward together.
    Micro-batches rarely have the same shape twice, and a judge's replies have another one with every token.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
