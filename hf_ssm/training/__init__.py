"""Training: the Trainer, the rescaled initialisation, the τ regulariser, optimizer groups."""

from hf_ssm.training.losses import TauLogger, tau_loss
from hf_ssm.training.rescale import rescale_init_
from hf_ssm.training.streaming import StreamCollator
from hf_ssm.training.trainer import SSMTrainer, SSMTrainingArguments

__all__ = ["SSMTrainer", "SSMTrainingArguments", "StreamCollator", "TauLogger", "rescale_init_", "tau_loss"]
