"""The actor-critic example: its physics, its returns and losses, and that it learns to balance."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

import pparallel

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "a3c"
ALONE = (
    "members=1",
    "reducer={backend: local}",
    "extra={critic: {interface: reducer, backend: local}}",
)

sys.path.insert(0, str(EXAMPLE))  # as `pparallel run` does
try:
    import a3c
    import cart_pole
finally:
    sys.path.remove(str(EXAMPLE))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def energy(states: Tensor) -> Tensor:
    """Return the energy, in J, of carts and poles: [n]."""
    _, velocity, angle, turning = states.unbind(1)
    moment = cart_pole.POLE * cart_pole.ARM
    kinetic = (cart_pole.CART + cart_pole.POLE) * velocity.square() / 2
    kinetic += moment * velocity * turning * angle.cos()
    kinetic += 2 / 3 * moment * cart_pole.ARM * turning.square()  # of a thin rod about its end
    return kinetic + cart_pole.GRAVITY * moment * angle.cos()


class Constant(nn.Module):
    """An actor that pushes left and right with probabilities that no state changes."""

    def __init__(self, left: float, right: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([left, right]).log())

    @override
    def forward(self, states: Tensor) -> Tensor:
        return self.logits.expand(*states.shape[:-1], 2)


class TestPhysics:
    @pytest.mark.parametrize("force", [0.0, 10.0, -10.0])
    def test_energy_changes_by_the_work_of_the_push(self, force: float) -> None:
        before = torch.rand(100, 4, generator=generator(), dtype=torch.float64) * 4 - 2
        interval = 1e-6
        after = cart_pole.moved(before, torch.full((100,), force), interval)
        work = force * (after[:, 0] - before[:, 0])
        assert torch.allclose(energy(after) - energy(before), work, rtol=0, atol=1e-9)

    def test_a_push_from_rest(self) -> None:
        (after,) = cart_pole.moved(torch.zeros(1, 4, dtype=torch.float64), torch.tensor([10.0]))
        swing = -(10 / 1.1) / (0.5 * (4 / 3 - 0.1 / 1.1))
        thrust = 10 / 1.1 - 0.1 * 0.5 * swing / 1.1
        expected = [0, thrust * 0.02, 0, swing * 0.02]
        assert after.tolist() == pytest.approx(expected, abs=1e-6)

    def test_a_mirror_changes_nothing(self) -> None:
        states, forces = torch.randn(50, 4, generator=generator()), torch.randn(50)
        mirrored = -cart_pole.moved(-states, -forces)
        assert torch.equal(cart_pole.moved(states, forces), mirrored)

    def test_upright_and_at_rest_it_stays(self) -> None:
        assert torch.equal(cart_pole.moved(torch.zeros(3, 4), torch.zeros(3)), torch.zeros(3, 4))


class TestEpisodes:
    @pytest.mark.parametrize(
        ("state", "fails"),
        [
            ([2.39, 0, 0, 0], False),
            ([2.41, 0, 0, 0], True),
            ([-2.41, 0, 0, 0], True),
            ([0, 0, 0.2, 0], False),
            ([0, 0, 0.22, 0], True),
            ([0, 0, -0.22, 0], True),
        ],
    )
    def test_they_end_where_the_pole_fell_or_the_track_ends(
        self, state: list[float], fails: bool
    ) -> None:
        poles = cart_pole.CartPole(2, generator())
        poles.states = torch.tensor([state, [0.0] * 4])
        outcome = poles.step(torch.tensor([1, 1]))
        assert outcome.failed.tolist() == [fails, False]
        assert outcome.cut.tolist() == [False, False]
        if fails:
            assert poles.states[0].abs().max() <= 0.05  # begun anew
            assert outcome.states[0].abs().max() > 0.2  # and how it ended is told
        else:
            assert torch.equal(poles.states, outcome.states)

    def test_they_are_cut_off_where_they_are_long(self) -> None:
        poles = cart_pole.CartPole(3, generator())
        for step in range(1, cart_pole.LONGEST + 1):
            poles.states = torch.zeros(3, 4)
            if step == cart_pole.LONGEST:
                poles.states[0, 2] = 1.0
            outcome = poles.step(torch.tensor([0, 1, 0]))
            assert outcome.lengths.tolist() == [step] * 3
            assert outcome.cut.any() == (step == cart_pole.LONGEST)
        assert outcome.cut.tolist() == [False, True, True]
        assert outcome.failed.tolist() == [True, False, False]  # one that fell was not cut off
        assert poles.step(torch.tensor([0, 1, 0])).lengths.tolist() == [1, 1, 1]

    def test_a_seed_says_all(self) -> None:
        first, same, other = (
            a3c.play(cart_pole.CartPole(4, random), Constant(1, 1), 100, random)
            for random in map(generator, (1, 1, 2))
        )
        assert all(map(torch.equal, first, same))
        assert not torch.equal(first.states, other.states)

    def test_what_follows_is_what_comes_next(self) -> None:
        seen = a3c.play(cart_pole.CartPole(8, generator()), Constant(1, 1), 100, generator(1))
        goes_on = ~(seen.failed | seen.cut)[:-1]
        assert torch.equal(seen.led_to[:-1][goes_on], seen.states[1:][goes_on])
        assert torch.equal(seen.lengths[1:][goes_on], seen.lengths[:-1][goes_on] + 1)
        assert (seen.lengths[1:][~goes_on] == 1).all()
        assert seen.rewards.eq(1).all()

    def test_only_first_episodes_count(self) -> None:
        """Whoever pushes to one side only is quick to fail: short episodes would count often."""
        found = a3c.mean_return(Constant(0, 1), generator(3))
        poles, lengths = cart_pole.CartPole(a3c.EPISODES, generator(3)), [0] * a3c.EPISODES
        for step in range(1, 50):
            outcome = poles.step(torch.ones(a3c.EPISODES, dtype=torch.int64))
            for cart in outcome.failed.nonzero():
                lengths[cart] = lengths[cart] or step
        assert 8 < found < 12
        assert found == pytest.approx(sum(lengths) / len(lengths))


def experience(steps: int, carts: int) -> a3c.Experience:
    random = generator(5)
    draw = torch.rand(2, steps, carts, generator=random)
    failed = draw[0] < 0.2
    return a3c.Experience(
        states=torch.randn(steps, carts, 4, generator=random),
        actions=torch.randint(2, (steps, carts), generator=random),
        led_to=torch.randn(steps, carts, 4, generator=random),
        rewards=torch.randn(steps, carts, generator=random),
        failed=failed,
        cut=(draw[1] < 0.2) & ~failed,
        lengths=torch.ones(steps, carts, dtype=torch.int64),
    )


def test_returns_are_those_of_a_naive_loop() -> None:
    seen, values = experience(20, 30), torch.randn(20, 30, generator=generator(6))
    found = a3c.n_step_returns(seen, values)
    for cart in range(30):
        for start in range(20):
            expected, worth = 0.0, 1.0
            for step in range(start, 20):
                expected += worth * seen.rewards[step, cart].item()
                worth *= a3c.DISCOUNT
                if seen.failed[step, cart]:
                    break
                if seen.cut[step, cart] or step == 19:
                    expected += worth * values[step, cart].item()
                    break
            assert found[start, cart].item() == pytest.approx(expected, abs=1e-4)


def test_losses_are_those_of_a_naive_loop() -> None:
    actor, critic = a3c.network(2, generator(7)), a3c.network(1, generator(8))
    *_, weight, _ = actor.parameters()
    nn.init.normal_(weight, generator=generator(9))
    seen = experience(6, 5)
    with torch.no_grad():
        values, targets = critic(seen.states), a3c.n_step_returns(seen, critic(seen.led_to)[..., 0])
        chances = actor(seen.states).softmax(-1)
    gains, errors = [], []
    for step in range(6):
        for cart in range(5):
            advantage = (targets[step, cart] - values[step, cart]).item()
            chance = chances[step, cart]
            surprise = -chance.log()
            gain = -surprise[seen.actions[step, cart]] * advantage
            gains.append((gain + a3c.ENTROPY * (chance * surprise).sum()).item())
            errors.append(advantage**2)
    actor_loss, critic_loss = a3c.losses(actor, critic, seen)
    assert actor_loss.item() == pytest.approx(-sum(gains) / 30, rel=1e-4)
    assert critic_loss.item() == pytest.approx(sum(errors) / 30, rel=1e-4)


def test_a_loss_is_of_one_model() -> None:
    actor, critic = a3c.network(2, generator(7)), a3c.network(1, generator(8))
    actor_loss, critic_loss = a3c.losses(actor, critic, experience(6, 5))
    actor_loss.backward()
    assert all(each.grad is not None for each in actor.parameters())
    assert all(each.grad is None for each in critic.parameters())
    actor.zero_grad()
    critic_loss.backward()
    assert all(each.grad is None for each in actor.parameters())
    assert all(each.grad is not None for each in critic.parameters())


def test_it_learns_alone() -> None:
    """As the README advises those who debug."""
    overrides = ["args.updates=60", *ALONE]
    (tested,) = pparallel.launch(pparallel.load(EXAMPLE / "threads.yaml", overrides=overrides))
    assert tested["mean_return_after"] > 3 * tested["mean_return_before"]


@pytest.mark.parametrize(("language", "source"), [("py", "a3c.py"), ("yaml", "threads.yaml")])
def test_the_docs_quote_it(language: str, source: str) -> None:
    page = (ROOT / "docs" / "examples" / "a3c.md").read_text()
    quoted = re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)
    assert quoted[0] in (EXAMPLE / source).read_text()


def test_the_picture_is_of_a_job_that_learned(tmp_path: Path) -> None:
    data = (ROOT / "docs" / "images" / "a3c.json").read_text()
    found = json.loads(data)
    assert len(found["after"]) >= 5
    assert min(found["after"].values()) >= 400
    assert max(found["before"].values()) < 40
    assert all(len(each) == len(found["played"]) for each in found["returns"].values())

    (tmp_path / "a3c.json").write_text(data)
    command = [sys.executable, str(EXAMPLE / "curve.py"), "--redraw", str(tmp_path / "a3c.svg")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    drawn, shown = (tmp_path / "a3c.svg").read_text(), ROOT / "docs" / "images" / "a3c.svg"
    for text in re.findall(r"<text[^>]*>([^<]+)</text>", shown.read_text()):
        assert text in drawn
