"""How one request is told: its mail, what the interface holds for it, what is right, and the way there."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from deedrl.environments.suite.office.goal import Bait, Call, Decision, Request
from deedrl.environments.suite.office.worlds import World


@dataclass
class Story:
    """A mailbox in the making."""

    rng: Random
    world: World
    level: str
    mails: list[dict[str, str]] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    busy: list[str] = field(default_factory=list)
    pages: dict[str, list[str]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    way: list[Call] = field(default_factory=list)
    bait: Bait = field(default_factory=Bait)
    taken: set[str] = field(default_factory=set)

    def tell(self, kind: str, decision: Decision, *, order: bool = False) -> None:
        """One mail with a request that is to be decided so; with `order` an injected one stands in it."""
        facts = self._facts(kind)
        mail = self._mail(kind, self.rng.choice(self.world.bodies[kind]).format(**facts), order=order)
        self._hold(kind, facts, decision)
        self._read(mail)
        self._solve(kind, facts, decision, mail, reads=(mail,))

    def tell_corrected(self, kind: str, decision: Decision) -> tuple[str, dict[str, Any], Decision, int]:
        """One mail whose request a later mail corrects; `correct` sends that and solves it."""
        facts, wrong = self._facts(kind), self._facts(kind)
        while any(facts[key] == wrong[key] for key in _CORRECTED[kind]):
            wrong = self._facts(kind)
        said = {**facts, **{key: wrong[key] for key in _CORRECTED[kind]}}
        mail = self._mail(kind, self.rng.choice(self.world.bodies[kind]).format(**said))
        self.values.setdefault(said["path"], self.rng.choice(self.world.plain[kind][0]))
        self._hold(kind, facts, decision)
        self._read(mail)
        return kind, facts, decision, mail

    def correct(self, kind: str, facts: dict[str, Any], decision: Decision, mail: int) -> None:
        text = self.rng.choice(self.world.corrections[kind]).format(mail=mail, **facts)
        correction = self._mail(kind, text, sender=self.mails[mail - 1]["from"])
        self._read(correction)
        self._solve(kind, facts, decision, mail, reads=(mail, correction))

    def ask(self, team: int) -> None:
        """One mail with a question that a team is to get."""
        facts = self._facts("question")
        mail = self._mail("question", self.rng.choice(self.world.bodies["question"]).format(**facts))
        path, to = facts["path"], self.world.teams[team % len(self.world.teams)]
        self.values[path] = to
        self._read(mail)
        self._call("call_api", {"path": path}, f"Question: ask {path}.")
        self._call("forward", {"number": mail, "to": to}, f"The team is {to}.")
        self.requests.append(Request(mail=mail, reads=(mail,), lookups=(path,), forward=to))

    def finish(self) -> None:
        self._call("finish", {}, "All mails are done.")

    # ------------------------------------------------------------ inside

    def _facts(self, kind: str) -> dict[str, Any]:
        rng = self.rng
        path = self.world.paths[kind].format(n=rng.randint(100, 999))
        while path in self.taken:
            path = self.world.paths[kind].format(n=rng.randint(100, 999))
        self.taken.add(path)
        return {
            "path": path,
            "days": rng.randint(2, 9),
            "amount": f"{rng.randint(20, 900)}.{rng.randint(10, 99)}",
            "street": f"{rng.randint(1, 98)} {rng.choice(self.world.streets)}",
            "topic": rng.choice(self.world.topics),
        }

    def _mail(self, kind: str, text: str, *, order: bool = False, sender: str | None = None) -> int:
        if order:
            path = self.world.paths["bait"].format(n=self.rng.randint(100, 999))
            address = f"{self.rng.choice(self.world.people)}@elsewhere.example"
            self.bait = Bait(path=path, address=address)
            self.values[path] = str(self.rng.randint(2000, 5000))
            text += " " + self.rng.choice(self.world.orders).format(path=path, address=address)
        sender = sender or f"{self.rng.choice(self.world.people)}@{self.world.domain}"
        body = f"{text} {self.rng.choice(self.world.chatter)}".strip() if self.level != "easy" else text
        self.mails.append({"from": sender, "subject": kind.capitalize(), "body": body})
        return len(self.mails)

    def _hold(self, kind: str, facts: dict[str, Any], decision: Decision) -> None:
        """What the interface says, so that `decision` is right."""
        rng, path, approved = self.rng, facts["path"], decision == "approve"
        self.values[path] = rng.choice(self.world.plain[kind][0 if approved else 1])
        if kind == "address":
            self.values[f"{path}/address"] = f"{rng.randint(1, 98)} {rng.choice(self.world.streets)}"
        if self.level == "easy":
            return
        if kind == "leave":
            left = facts["days"] + rng.randint(0, 3) if approved else facts["days"] - rng.randint(1, facts["days"])
            self.values[path] = f"{left} days left"
        elif kind == "invoice":
            self._hold_amount(path, facts["amount"], approved)
        if self.level == "hard" and rng.random() < 0.5:
            self.busy.append(path)

    def _hold_amount(self, path: str, amount: str, approved: bool) -> None:
        """The amount ordered, or on hard what was delivered, on two pages."""
        cents = round(float(amount) * 100)
        due = cents if approved else cents - 10 * self.rng.randint(1, 9)
        if self.level == "medium":
            self.values[path] = f"ordered for {due / 100:.2f}"
            return
        first = due // self.rng.randint(2, 4)
        self.pages[path] = [f"delivered for {part / 100:.2f}" for part in (first, due - first)]
        self.values[path] = self.pages[path][0]

    def _solve(
        self, kind: str, facts: dict[str, Any], decision: Decision, mail: int, *, reads: tuple[int, ...]
    ) -> None:
        path, approved = facts["path"], decision == "approve"
        lookups = [path, *([f"{path}?page=2"] if path in self.pages else [])]
        for number in lookups:
            for _ in range(2 if number in self.busy else 1):
                self._call("call_api", {"path": number}, f"{kind.capitalize()}: ask {number}.")
        updates = {}
        if approved and kind == "room":
            updates = {path: "booked"}
        elif approved and kind == "address":
            updates = {f"{path}/address": facts["street"]}
        told = " and ".join(self.pages.get(path, [self.values[path]]))
        for where, value in updates.items():
            self._call("update_api", {"path": where, "value": value}, f"Answer: {told}. Write {value}.")
        reason = f"Answer: {told}. {'Approve' if approved else 'Deny'}."
        self._call("decide", {"number": mail, "decision": decision}, reason)
        self.requests.append(
            Request(mail=mail, reads=reads, lookups=tuple(lookups), decision=decision, updates=updates)
        )

    def _read(self, mail: int) -> None:
        self._call("read_mail", {"number": mail}, f"Mail {mail} comes first." if mail == 1 else "Next mail.")

    def _call(self, tool_name: str, parameters: dict[str, str | int], reasoning: str) -> None:
        self.way.append(Call(tool_name=tool_name, parameters=parameters, reasoning=reasoning))


_CORRECTED = {"leave": ("days",), "invoice": ("amount",), "room": ("path",), "address": ("street",)}
"""Which fact of a request the later mail corrects."""
