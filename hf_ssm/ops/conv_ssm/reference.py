"""The recurrence of a convolutional state space model, frame by frame, and the convolution of frames.

Dimensions as in `hf_ssm.ops.conv_ssm`.
"""

import torch
from torch import Tensor
from torch.nn.functional import conv2d

__all__ = ["conv_ssm_reference", "convolve_frames"]


def convolve_frames(frames: Tensor, kernel: Tensor) -> Tensor:
    """Each frame convolved with a kernel of odd size, with zeros around it.

    Args:
        frames: `(B, T, h, w, D)`.
        kernel: `(E, D, k, k)`.

    Returns:
        `(B, T, h, w, E)`.
    """
    # The channels stay the last dimension in memory.
    images = frames.flatten(0, 1).permute(0, 3, 1, 2)
    convolved = conv2d(images, kernel, padding=kernel.shape[-1] // 2)
    return convolved.permute(0, 2, 3, 1).unflatten(0, frames.shape[:2])


def conv_ssm_reference(
    inputs: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor | None = None, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `conv_ssm` with a loop over the frames, and over the offsets of the kernels; same arguments."""

    def around(frame: Tensor, kernel: Tensor) -> Tensor:
        height, width = frame.shape[1:3]
        margin = kernel.shape[-1] // 2
        padded = frame.new_zeros(frame.shape[0], height + 2 * margin, width + 2 * margin, frame.shape[-1])
        padded[:, margin : margin + height, margin : margin + width] = frame
        total = frame.new_zeros(*frame.shape[:3], kernel.shape[0])
        for row in range(kernel.shape[-2]):
            for column in range(kernel.shape[-1]):
                window = padded[:, row : row + height, column : column + width]
                total = total + window @ kernel[:, :, row, column].mT
        return total

    a, b, c = (torch.complex(*pair.unbind(-1)) for pair in (a, b, c))
    state = inputs.new_zeros(*inputs[:, 0].shape[:3], a.shape[0], dtype=a.dtype)
    state = state if initial_state is None else initial_state
    outputs = []
    for frame in inputs.unbind(1):
        state = a * state + around(frame.to(a.dtype), b)
        output = 2 * around(state, c).real
        outputs.append(output if d is None else output + around(frame, d))
    return torch.stack(outputs, dim=1), state
