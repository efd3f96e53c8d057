"""What limits a run: findings from facts, the worst first. Pure. Each file holds the rules of one family."""

from __future__ import annotations

from shoal.observe.doctor.data import data_rules
from shoal.observe.doctor.exchange import exchange_rules
from shoal.observe.doctor.facts import Finding, FindingKind, RunFacts, WorkerFacts
from shoal.observe.doctor.hosts import host_rules
from shoal.observe.doctor.interruptions import interruption_rules
from shoal.observe.doctor.unequal import unequal_rules

_RULES = (*data_rules, *interruption_rules, *unequal_rules, *exchange_rules, *host_rules)

__all__ = ["Finding", "FindingKind", "RunFacts", "WorkerFacts", "examine"]


def examine(facts: RunFacts) -> list[Finding]:
    """The worst first; none if nothing stands out."""
    if not any(worker.seconds for worker in facts.workers):
        return []
    return sorted((finding for rule in _RULES for finding in rule(facts)), key=lambda finding: -finding.lost)
