"""How far people who rated the same things agree: raw, and beyond chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations

from deedrl.types import Record


class RaterAgreement(Record, frozen=True):
    """Of ratings in categories that have no order."""

    raters: int = 0
    items: int = 0
    """That anybody rated."""
    rated_twice: int = 0
    """That two raters or more rated: no other counts below."""
    comparisons: int = 0
    """Pairs of ratings of the same item."""
    agreeing: int = 0
    """Those of the same category."""
    alpha: float | None = None
    """Krippendorff's alpha: 1 is agreement, 0 what chance gives, below that is disagreement; None where it is undefined
    (nothing was rated twice, or all of it alike)."""

    @property
    def raw(self) -> float | None:
        """Share of comparisons that agree; None without any."""
        return self.agreeing / self.comparisons if self.comparisons else None


def rater_agreement(ratings: Mapping[object, Mapping[str, str]]) -> RaterAgreement:
    """Of `ratings` by item and rater; missing ones are no matter.

    Alpha is Krippendorff's for nominal data (Krippendorff 2011, Computing Krippendorff's alpha-reliability, C):
    1 - (n - 1) Σ_u Σ_{c≠k} n_uc n_uk / (m_u - 1) / Σ_{c≠k} n_c n_k, over items u with m_u >= 2 ratings and n ratings in
    all of these. For two raters without gaps it is close to Cohen's kappa.
    """
    paired = [list(of.values()) for of in ratings.values() if len(of) > 1]
    totals = Counter(category for values in paired for category in values)
    count = totals.total()
    observed = sum(_unlike(Counter(values)) / (len(values) - 1) for values in paired)
    expected = _unlike(totals)
    couples = [couple for values in paired for couple in combinations(values, 2)]
    return RaterAgreement(
        raters=len({rater for of in ratings.values() for rater in of}),
        items=sum(bool(of) for of in ratings.values()),
        rated_twice=len(paired),
        comparisons=len(couples),
        agreeing=sum(one == other for one, other in couples),
        alpha=1 - (count - 1) * observed / expected if expected else None,
    )


def by_raters(ratings: Mapping[object, Mapping[str, str]]) -> list[tuple[str, str, RaterAgreement]]:
    """Of each two raters who rated something in common, by name."""
    names = sorted({rater for of in ratings.values() for rater in of})
    found = []
    for one, other in combinations(names, 2):
        of_both = {item: {r: of[r] for r in (one, other) if r in of} for item, of in ratings.items()}
        if (agreement := rater_agreement(of_both)).comparisons:
            found.append((one, other, agreement))
    return found


def _unlike(counts: Counter[str]) -> int:
    """Ordered pairs of ratings of different categories."""
    return counts.total() ** 2 - sum(n * n for n in counts.values())
