"""What changes from step to step: the learning rate, and how often a decoder is told the answer.

Pure: a step number goes in, so resuming needs no state.
"""

import math

from training.recipe import SchedulePart, TeacherForcing


def learning_rate_factor(step: int, total_steps: int, schedule: SchedulePart) -> float:
    """The factor on the peak learning rate at one step.

    Climbs in a straight line during the warm-up, the last step of which has factor 1, then falls
    along half a cosine (Loshchilov and Hutter, 2017) and reaches `final_lr_share` at the last step.

    Args:
        step: from 0 to `total_steps` - 1.
        total_steps: steps of the whole run.
        schedule: the recipe's.

    Returns:
        Above 0 during the warm-up, then between `final_lr_share` and 1.
    """
    warmup_steps = round(total_steps * schedule.warmup_share)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    remaining = max(total_steps - 1 - warmup_steps, 1)
    progress = min((step - warmup_steps) / remaining, 1.0)
    low = schedule.cosine.final_lr_share
    return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * progress))


def teacher_forcing_share(step: int, total_steps: int, forcing: TeacherForcing) -> float:
    """The share of symbols that a decoder is told at one step, 0 to 1.

    Args:
        step: from 0 to `total_steps` - 1.
        total_steps: steps of the whole run.
        forcing: the recipe's.
    """
    progress = step / max(total_steps - 1, 1)
    return forcing.first + (forcing.last - forcing.first) * progress
