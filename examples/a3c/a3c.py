"""Learn to balance poles with an asynchronous advantage actor-critic (A3C).

The actor chooses what to do, the critic says what it expects to come of it: two models, each with a
reducer of its own. A worker plays with carts of its own, hands in gradients of both models, takes
newer parameters if there are any, and waits for no other worker.

Source: Mnih et al., "Asynchronous methods for deep reinforcement learning", ICML 2016.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import torch
from cart_pole import LONGEST, CartPole
from torch import Tensor, nn
from torch.optim.lr_scheduler import LinearLR

if TYPE_CHECKING:
    from pparallel import Runtime

DISCOUNT = 0.99  #: what a reward is worth one step before it comes
ENTROPY = 0.01  #: weight of the bonus for an undecided actor, which goes on exploring
MAX_NORM = 0.5  #: longer gradients are shortened to it
HIDDEN = 64  #: width of both networks
EPISODES = 100  #: of the tests before and after


class Experience(NamedTuple):
    """T steps of n carts."""

    states: Tensor  #: [T, n, 4] float32
    actions: Tensor  #: [T, n] int64
    led_to: Tensor  #: [T, n, 4] float32: the states after the actions
    rewards: Tensor  #: [T, n] float32
    failed: Tensor  #: [T, n] bool: the episode ended with this step
    cut: Tensor  #: [T, n] bool: the episode was cut off after this step
    lengths: Tensor  #: [T, n] int64: steps of the episode so far


def main(
    rt: Runtime,
    *,
    updates: int = 160,
    steps: int = 32,
    carts: int = 16,
    actor_lr: float = 0.005,
    critic_lr: float = 0.02,
    report_every: int = 20,
) -> dict[str, float] | None:
    """Train with the other members; return the mean return before and after where rank is 0.

    Args:
        rt: this member's runtime.
        updates: how many gradients of each model a worker hands in.
        steps: of each cart between two updates.
        carts: how many a worker plays with at once.
        actor_lr: learning rate of the actor at the start; it falls to zero.
        critic_lr: the same of the critic, which has to keep up with what the actor becomes.
        report_every: updates of a worker from one report to the next.
    """
    torch.set_num_threads(1)  # so little work is done sooner by one core than shared by several
    random = rt.streams.torch
    actor, critic = network(2, random), network(1, random)
    before = mean_return(actor, random) if rt.rank == 0 else 0.0

    shared = ((rt.reducer, actor, actor_lr), (rt["critic"], critic, critic_lr))
    for reducer, model, lr in shared:
        if reducer.manages:
            total = updates * max(1, rt.world_size - len(shared))  # the servers hand in none
            optimizer = torch.optim.RMSprop(model.parameters(), lr=lr, eps=1e-5)
            reducer.manage_model(model, optimizer, LinearLR(optimizer, 1.0, 0.0, total))
        reducer.start()
        reducer.pull(model)  # all begin at the same parameters
    if rt.reducer.trains and rt["critic"].trains:
        poles = CartPole(carts, random)
        returns: deque[float] = deque(maxlen=carts)
        for update in range(1, updates + 1):
            seen = play(poles, actor, steps, random)
            returns += seen.lengths[seen.failed | seen.cut].tolist()
            for (reducer, model, _), loss in zip(shared, losses(actor, critic, seen), strict=True):
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
                reducer.step(model)
            if returns and update % report_every == 0:
                latest = sum(returns) / len(returns)
                rt.report(step=update, played=update * steps * carts, mean_return=latest)
    for reducer, _, _ in shared:
        reducer.stop()
    if rt.rank > 0:
        return None
    return {"mean_return_before": before, "mean_return_after": mean_return(actor, random)}


def network(outputs: int, random: torch.Generator) -> nn.Module:
    """Return an untrained network from states to *outputs*, which are close to zero at first."""
    first, last = nn.Linear(4, HIDDEN), nn.Linear(HIDDEN, outputs)
    for layer, gain in ((first, 1.0), (last, 0.01)):
        nn.init.orthogonal_(layer.weight, gain, generator=random)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(first, nn.Tanh(), last)


@torch.no_grad()
def play(poles: CartPole, actor: nn.Module, steps: int, random: torch.Generator) -> Experience:
    """Push the carts as *actor* draws it, so many steps."""
    seen = []
    for _ in range(steps):
        states = poles.states
        actions = torch.multinomial(actor(states).softmax(1), 1, generator=random).squeeze(1)
        seen.append((states, actions, *poles.step(actions)))
    return Experience(*map(torch.stack, zip(*seen, strict=True)))


def losses(actor: nn.Module, critic: nn.Module, seen: Experience) -> tuple[Tensor, Tensor]:
    """Return the losses of *actor* and *critic*; no gradient of one reaches the other."""
    with torch.no_grad():
        targets = n_step_returns(seen, critic(seen.led_to).squeeze(-1))
    expected = critic(seen.states).squeeze(-1)
    advantages = targets - expected.detach()
    choices = torch.distributions.Categorical(logits=actor(seen.states), validate_args=False)
    gain = choices.log_prob(seen.actions) * advantages + ENTROPY * choices.entropy()
    return -gain.mean(), (targets - expected).square().mean()


def n_step_returns(seen: Experience, values: Tensor) -> Tensor:
    """Return the discounted rewards from each step to the last, and what then is expected.

    Args:
        seen: T steps.
        values: [T, n] float32, what the critic expects of the states after each step. It counts at
            the last step and where an episode was cut off; after a failure nothing comes.

    Returns:
        [T, n] float32.
    """
    returns, later = torch.empty_like(seen.rewards), values[-1]
    for step in reversed(range(len(returns))):
        later = torch.where(seen.cut[step], values[step], later)
        later = seen.rewards[step] + DISCOUNT * later.masked_fill(seen.failed[step], 0)
        returns[step] = later
    return returns


def mean_return(actor: nn.Module, random: torch.Generator) -> float:
    """Return the mean return of the first episodes that *actor* plays with new carts."""
    seen = play(CartPole(EPISODES, random), actor, LONGEST, random)
    ends = (seen.failed | seen.cut).int().argmax(0)  # of the first episode of each cart
    return float(seen.lengths.gather(0, ends[None]).double().mean())
