"""Schedules over the steps of a run: the learning rate, and the share of teacher forcing.

Pure: functions of the step number, so resuming needs no state. The factor of a schedule that waits
for the metric is in the train state (see `training.loop.train_state`).
"""

import math

from training.recipe.parts.schedule_parts import OneCycle, SchedulePart, Wsd
from training.recipe.parts.train_parts import TeacherForcing


def learning_rate_factor(
    step: int, total_steps: int, schedule: SchedulePart, epoch_steps: int = 1
) -> float:
    """Returns the factor on the peak learning rate at one step.

    It rises linearly to 1 over the first `warmup_share` of all steps, and then follows the
    schedule: a half cosine, for example, reaches `final_lr_share` at the last step.

    Args:
        step: from 0 to `total_steps` - 1.
        total_steps: steps of the whole run.
        schedule: the recipe's part.
        epoch_steps: steps of one epoch.

    Returns:
        Above 0 during the warm-up, then at most 1; 1 for `plateau`, whose factor is no function of
        the step.
    """
    warmup_steps = round(total_steps * schedule.warmup_share)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    epoch = step // epoch_steps
    if schedule.cosine is not None:
        remaining = max(total_steps - 1 - warmup_steps, 1)
        progress = min((step - warmup_steps) / remaining, 1.0)
        return _half_cosine(1.0, schedule.cosine.final_lr_share, progress)
    if schedule.step is not None:
        return schedule.step.gamma ** (epoch // schedule.step.every_epochs)
    if schedule.exponential is not None:
        return schedule.exponential.gamma**epoch
    if schedule.one_cycle is not None:
        return _one_cycle(step, total_steps, schedule.one_cycle)
    if schedule.wsd is not None:
        return _wsd(step, total_steps, warmup_steps, schedule.wsd)
    return 1.0


def teacher_forcing_share(step: int, total_steps: int, forcing: TeacherForcing) -> float:
    """Returns the share of symbols that a decoder gets from the labels at one step, 0 to 1.

    Args:
        step: from 0 to `total_steps` - 1.
        total_steps: steps of the whole run.
        forcing: the recipe's part.
    """
    progress = step / max(total_steps - 1, 1)
    return forcing.first + (forcing.last - forcing.first) * progress


def _half_cosine(first: float, last: float, progress: float) -> float:
    return last + (first - last) * 0.5 * (1 + math.cos(math.pi * progress))


def _one_cycle(step: int, total_steps: int, part: OneCycle) -> float:
    """Rises and falls by half a cosine each, as torch's `OneCycleLR`."""
    peak = part.climb_share * total_steps - 1
    if step <= peak:
        return _half_cosine(part.first_lr_share, 1.0, step / peak if peak > 0 else 1.0)
    progress = (step - peak) / (total_steps - 1 - peak)
    return _half_cosine(1.0, part.final_lr_share, min(progress, 1.0))


def _wsd(step: int, total_steps: int, warmup_steps: int, part: Wsd) -> float:
    decay_steps = min(round(total_steps * part.decay_share), total_steps - warmup_steps)
    progress = (step + 1 - (total_steps - decay_steps)) / max(decay_steps, 1)
    if progress <= 0:
        return 1.0
    fallen = progress if part.shape == "linear" else math.sqrt(progress)
    return part.final_lr_share + (1 - part.final_lr_share) * (1 - fallen)
