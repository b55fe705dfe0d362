"""Designs, bounds, the value of repeated tokens, and the mixture that is chosen where the best one is
known."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage.recipe import RecipeError, parse_table
from tests.support.training.mix_world import SPACE, TARGET, World, chosen
from trainer.mix.design import make_design, snap
from trainer.mix.models import MODELS, fit_log_linear
from trainer.mix.optimize import Goal, bounded, expected, recommend, resampled, settle
from trainer.mix.space import draw, make_space, project, token_value
from trainer.mix.swarm import Swarm
from trainer.ordering.mixture import quantise
from trainer.recipe_tables.mixing import MixTable

TOKENS = {"web": 6_000_000, "books": 3_000_000, "code": 1_000_000}


def test_the_value_of_repeated_tokens_is_that_of_the_paper() -> None:
    told = token_value(np.array([0.3, 1.0, 2.0, 4.0, 8.0, 16.0, 40.0]))
    assert told == pytest.approx([1.0, 1.0, 0.984, 0.931, 0.828, 0.661, 0.379], abs=5e-4)


@given(st.lists(st.floats(-2, 2), min_size=3, max_size=3), st.floats(0, 0.3), st.floats(0.4, 1))
def test_a_projection_is_allowed_and_no_draw_is_nearer(point: list[float], low: float, high: float) -> None:
    lower, upper = np.full(3, low), np.full(3, high)
    found = project(np.array([point]), lower, upper)[0]
    assert found.sum() == pytest.approx(1.0, abs=1e-9)
    assert (found >= lower - 1e-12).all() and (found <= upper + 1e-12).all()
    others = project(np.random.default_rng(0).dirichlet(np.ones(3), 50), lower, upper)
    distances = ((others - point) ** 2).sum(axis=1)
    assert ((found - point) ** 2).sum() <= distances.min() + 1e-9


class TestDesign:
    """What an ablation runs."""

    def points(self, seed: int = 1, **changes: object) -> list[object]:
        table = parse_table(MixTable, {"runs": 12, **changes})
        return list(make_design(make_space(TOKENS, table), table, seed, 200))

    def test_it_holds_every_kind_of_run_and_is_a_function_of_the_seed(self) -> None:
        points = make_design(make_space(TOKENS, MixTable()), MixTable(), 1, 200)
        roles = [point.role for point in points]
        assert (roles.count("replicate"), roles.count("held_out")) == (2, 4)
        assert roles[:5] == ["natural", "uniform", "corner", "corner", "corner"]
        assert points[0].weights == {"books": 0.3, "code": 0.1, "web": 0.6}
        assert len({point.seed for point in points if point.role in ("natural", "replicate")}) == 3
        assert self.points() == self.points()
        assert self.points() != self.points(seed=2)

    def test_mixtures_differ_are_allowed_and_are_whole_sequences(self) -> None:
        table = MixTable(runs=15, replicates=0, caps={"web": 0.5}, floors={"code": 0.1})
        points = make_design(make_space(TOKENS, table), table, 3, 200)
        rows = np.array([[point.weights[name] for name in ("books", "code", "web")] for point in points])
        assert (rows[:, 2] <= 0.5).all() and (rows[:, 1] >= 0.1).all()
        distance = np.abs(rows[:, None] - rows[None]).sum(axis=2) / 2
        assert distance[np.triu_indices(len(rows), 1)].min() >= 0.02
        for point in points:
            counts = dict(quantise(point.weights, 200))
            assert {name: count / 200 for name, count in counts.items()} == point.weights

    def test_a_source_with_cap_0_is_never_trained_on(self) -> None:
        table = MixTable(runs=8, caps={"code": 0.0})
        points = make_design(make_space(TOKENS, table), table, 0, 200)
        assert {str(point.weights["code"]) for point in points} == {"0.0"}

    def test_no_drawn_share_is_above_fifteen_times_its_prior(self) -> None:
        space = make_space({"web": 9_500_000, "books": 400_000, "code": 100_000}, MixTable())
        drawn = draw(space, 2000, np.random.default_rng(0), round_prior=True)
        assert drawn.sum(axis=1) == pytest.approx(1.0)
        assert (drawn / space.prior).max(axis=0) == pytest.approx([15.0, 15.0, 1.0], rel=0.06)
        assert (drawn / space.prior).max() <= 15.0 + 1e-9

    def test_floors_and_caps_come_before_the_bound_on_drawn_shares(self) -> None:
        tokens = {"web": 9_500_000, "books": 400_000, "code": 100_000}
        floored = make_space(tokens, MixTable(floors={"code": 0.2}))
        assert (draw(floored, 50, np.random.default_rng(0), round_prior=True)[:, 1] == 0.2).all()
        # Fifteen times the priors of books and code sum to .75: web can have no more than .1.
        capped = make_space(tokens, MixTable(caps={"web": 0.1}))
        drawn = draw(capped, 50, np.random.default_rng(0), round_prior=True)
        assert drawn.sum(axis=1) == pytest.approx(1.0)
        assert (drawn[:, 2] <= 0.1).all()

    @pytest.mark.parametrize("block", [7, 16, 64])
    def test_rounding_to_whole_sequences_keeps_to_caps_and_floors(self, block: int) -> None:
        table = MixTable(caps={"web": 0.48, "books": 0.36}, floors={"code": 0.17})
        space = make_space(TOKENS, table)
        for mixture in draw(space, 200, np.random.default_rng(block), round_prior=False):
            books, code, web = snap(mixture, space, block)
            assert web <= 0.48 and books <= 0.36 and code >= 0.17
            assert books + code + web == pytest.approx(1.0)

    def test_a_floor_below_one_sequence_is_one_sequence(self) -> None:
        space = make_space(TOKENS, MixTable(floors={"code": 0.0005}))
        assert snap(np.array([0.6, 0.0005, 0.3995]), space, 10) == pytest.approx([0.5, 0.1, 0.4])

    @pytest.mark.parametrize(
        ("block", "shares"), [(2, [0.3, 0.3, 0.4]), (2, [0.001, 0.001, 0.998]), (1, [0, 0, 1.0])]
    )
    def test_a_block_too_short_for_the_sources_is_called_that(self, block: int, shares: list[float]) -> None:
        space = make_space(TOKENS, MixTable(floors={"books": 0.0005, "code": 0.0005}))
        with pytest.raises(
            RecipeError, match=f"a mixture block of {block} sequence.* is too short for 3 sources"
        ):
            snap(np.array(shares), space, block)

    def test_bounds_that_no_whole_sequences_meet_give_the_nearest_ones(self) -> None:
        space = make_space(TOKENS, MixTable(caps={"web": 0.34, "books": 0.34, "code": 0.34}))
        assert sorted(snap(np.full(3, 1 / 3), space, 4)) == [0.25, 0.25, 0.5]

    @pytest.mark.parametrize(
        ("table", "message"),
        [
            (
                {"caps": {"blogs": 0.5}},
                "mix.caps.blogs: train.data has no such source, only books, code, web",
            ),
            ({"targets": {"blogs": 1.0}}, "mix.targets.blogs"),
            ({"caps": {"web": 0.2, "books": 0.2, "code": 0.2}}, "no shares sum to 1"),
            ({"floors": {"web": 0.6, "books": 0.6}}, "no shares sum to 1"),
            ({"caps": {"web": 0.1}, "floors": {"web": 0.2}}, "at most its cap, 0.1"),
            ({"caps": {"web": 0.0, "books": 0.0}}, "fewer than two sources"),
            ({"targets": {"web": 0.0}}, "every weight is 0"),
            ({"runs": 4}, "expected at least 5 for 3 sources"),
            ({"runs": 60, "caps": {"web": 0.35, "books": 0.35, "code": 0.35}}, "mixtures within"),
        ],
    )
    def test_what_cannot_be_is_refused(self, table: dict[str, object], message: str) -> None:
        with pytest.raises(RecipeError, match=message):
            self.points(**table)


class TestRecommendation:
    """The chosen mixture of a swarm in a known world."""

    def swarm(self) -> Swarm:
        weights, losses = World(3).swarm(40)
        return Swarm(sources=SPACE.sources, targets=SPACE.sources, weights=weights, losses=losses)

    def test_it_beats_uniform_and_comes_as_a_block_that_the_trainer_takes(self) -> None:
        choice = recommend(SPACE, self.swarm(), MODELS["log_linear"], Goal(target_weights=TARGET))
        assert World(3).regret(np.array(list(choice.weights.values()))) < 0.02
        assert choice.predicted < choice.uniform
        assert choice.interval[0] < choice.interval[1]
        assert 0.0 <= choice.regret[0] <= choice.regret[1]
        pasted = f'[train]\nmodel = "debug"\n\n{choice.as_toml()}\n[train.optimizer]\nlr = 1e-3\n'
        block = tomllib.loads(pasted)["train"]["mixture"]
        assert block == [{"first_step": 0, "weights": choice.weights}]
        quantised = {name: count / 1000 for name, count in quantise(choice.weights, 1000)}
        assert quantised == choice.weights

    def test_the_law_fitted_again_near_its_choice_chooses_better_with_few_runs_and_with_many(self) -> None:
        plain, near = Goal(target_weights=TARGET), Goal(target_weights=TARGET).for_model("log_linear")
        worlds = [World(seed) for seed in range(8)]
        swarms = [world.swarm(160) for world in worlds]
        for num_runs in (20, 40, 160):
            regrets = []
            for world, (weights, losses) in zip(worlds, swarms, strict=True):
                runs = Swarm(
                    sources=SPACE.sources,
                    targets=SPACE.sources,
                    weights=weights[:num_runs],
                    losses=losses[:num_runs],
                )
                both = (settle(SPACE, runs, MODELS["log_linear"], goal)[1] for goal in (plain, near))
                regrets.append([world.regret(mixture) for mixture in both])
            once, again = np.mean(regrets, axis=0)
            assert again < once - 0.001, num_runs

    def test_a_run_that_counts_for_nothing_changes_nothing(self) -> None:
        runs = self.swarm()
        trust = np.ones(40)
        trust[7] = 0.0
        spoilt = np.where(np.arange(40) == 7, 99.0, runs.losses[:, 0])
        mixtures = runs.weights[:5]
        with_it = fit_log_linear(runs.weights, spoilt, trust).predict(mixtures)
        without = fit_log_linear(np.delete(runs.weights, 7, axis=0), np.delete(runs.losses[:, 0], 7)).predict(
            mixtures
        )
        assert with_it == pytest.approx(without, abs=1e-4)

    def test_no_source_is_read_for_more_epochs_than_allowed(self) -> None:
        goal = Goal(target_weights=TARGET, budget_tokens=4_000_000_000, max_epochs=1.0)
        choice = recommend(SPACE, self.swarm(), MODELS["log_linear"], goal)
        assert max(choice.epochs.values()) <= 1.0
        assert sum(share * 4 for share in choice.weights.values()) == pytest.approx(
            sum(choice.epochs.values())
        )

    def test_a_strong_pull_to_the_prior_gives_the_prior(self) -> None:
        choice = recommend(SPACE, self.swarm(), MODELS["log_linear"], Goal(target_weights=TARGET, kl=100.0))
        assert list(choice.weights.values()) == pytest.approx([0.2] * 5, abs=2e-3)

    def test_regret_is_loss_without_the_price_of_divergence(self) -> None:
        rng = np.random.default_rng(3)
        space = make_space({"a": 8_000_000, "b": 1_500_000, "c": 500_000}, MixTable())
        weights = rng.dirichlet(np.ones(3), 16)
        laws = ([0, 2, 1], [1, 0, 2], [2, 1, 0])
        losses = np.stack([2 + np.exp(-(weights @ law)) + rng.normal(0, 0.02, 16) for law in laws], axis=1)
        swarm = Swarm(sources=space.sources, targets=space.sources, weights=weights, losses=losses)
        goal = Goal(target_weights=np.array([0.2, 0.4, 0.4]), kl=1.0)
        choice = recommend(space, swarm, MODELS["log_linear"], goal)
        shares, above = np.array(list(choice.weights.values())), []
        for runs in resampled(swarm, goal):
            models, ideal = settle(space, runs, MODELS["log_linear"], goal)
            chosen, least = expected(models, space, goal)(np.stack((shares, ideal)))
            above.append(max(float(chosen - least), 0.0))
        assert choice.regret[0] == pytest.approx(np.mean(above), rel=0.05)

    def test_the_natural_mixture_chosen_is_no_gain_over_itself(self) -> None:
        goal = Goal(target_weights=TARGET, kl=100.0).for_model("log_linear")
        weights, losses = World(0).swarm(20)
        swarm = Swarm(sources=SPACE.sources, targets=SPACE.sources, weights=weights, losses=losses)
        choice = recommend(SPACE, swarm, MODELS["log_linear"], goal)
        assert choice.predicted == pytest.approx(choice.natural, abs=0.0015)  # the noise of a proxy
        assert choice.natural == choice.uniform

    def test_a_gain_that_is_thirty_times_the_noise_is_predicted_as_one(self) -> None:
        """In these worlds the law of all runs alike predicts a loss."""
        goal = Goal(target_weights=TARGET, kl=0.01).for_model("log_linear")
        for seed in range(2):
            world = World(seed)
            weights, losses = world.swarm(20)
            swarm = Swarm(sources=SPACE.sources, targets=SPACE.sources, weights=weights, losses=losses)
            choice = recommend(SPACE, swarm, MODELS["log_linear"], goal)
            gain = world.exact(SPACE.prior) - world.exact(np.array(list(choice.weights.values())))
            assert gain > 0.04
            assert choice.natural - choice.predicted == pytest.approx(gain, abs=0.03)

    def test_a_budget_beyond_all_tokens_is_refused(self) -> None:
        goal = Goal(target_weights=TARGET, budget_tokens=10**12, max_epochs=4.0)
        with pytest.raises(RecipeError, match="4 epochs under 1,000,000,000,000 tokens"):
            bounded(SPACE, goal)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "regrets"),
    [
        ("log_linear", {20: 0.006, 40: 0.005, 160: 0.005}),
        ("quadratic", {20: 0.042, 40: 0.018, 160: 0.005}),
        ("best", {20: 0.028, 40: 0.020, 160: 0.008}),
        ("lightgbm", {160: 0.005}),
    ],
)
def test_regrets_in_a_known_world_are_those_measured_before(model: str, regrets: dict[int, float]) -> None:
    """Within the noise of one proxy (0.002 nats) and the error of a mean over eight worlds."""
    worlds = [World(seed) for seed in range(8)]
    swarms = [world.swarm(160) for world in worlds]
    for num_runs, figure in regrets.items():
        found = [
            world.regret(chosen(model, weights[:num_runs], losses[:num_runs]))
            for world, (weights, losses) in zip(worlds, swarms, strict=True)
        ]
        error = float(np.std(found)) / len(found) ** 0.5
        assert np.mean(found) < figure + 0.002 + 2 * error, num_runs
