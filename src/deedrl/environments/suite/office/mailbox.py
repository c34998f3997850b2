"""The clerk's mailbox: a maildir, one file a mail, flags in its name, as mail programs have it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from email.message import EmailMessage
from email.parser import Parser
from email.policy import default as POLICY
from pathlib import Path

CLERK = "clerk@office.example"


class Mailbox:
    """Mails by their number, from 1, in the order they came; and the folder of what was sent.

    The folders stay for the next episode and are emptied for it: removing them takes longer than all else done there.
    """

    def __init__(self) -> None:
        self.count = 0
        self._holder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def _folder(self) -> Path:
        assert self._holder is not None, "renew() comes first"
        return Path(self._holder.name)

    def renew(self, mails: Sequence[Mapping[str, str]]) -> None:
        """A mailbox with these mails alone, all of them new."""
        if self._holder is None:
            self._holder = tempfile.TemporaryDirectory(prefix="deedrl-office-", ignore_cleanup_errors=True)
            for name in ("cur", "new", "tmp", ".Sent/cur", ".Sent/new", ".Sent/tmp"):
                (self._folder / name).mkdir(parents=True)
        for file in [*self._folder.glob("*/*.mail*"), *self._folder.glob(".Sent/*/*.mail*")]:
            file.unlink()
        self.count = len(mails)
        for number, mail in enumerate(mails, start=1):
            text = _text(mail["from"], CLERK, mail["subject"], mail["body"])
            (self._folder / "new" / f"{number}.mail").write_text(text, encoding="utf-8")

    def remove(self) -> None:
        """Removes the folders; may be called more than once."""
        holder, self._holder = self._holder, None
        if holder is not None:
            holder.cleanup()

    def read(self, number: int) -> str:
        """Sender, subject and text; marks the mail as seen."""
        mail, text = _parsed(self._mark(number, "S"))
        return f"From {mail['From']}. {mail['Subject']}: {text.strip()}"

    def answer(self, number: int) -> None:
        """Marks the mail as answered."""
        self._mark(number, "R")

    def forward(self, number: int, to: str) -> None:
        """Puts a copy into the folder of what was sent."""
        mail, text = _parsed(self._mark(number, "P"))
        sent = self._folder / ".Sent" / "cur"
        name = f"{len(list(sent.iterdir())) + 1}.mail:2,S"
        (sent / name).write_text(_text(CLERK, to, f"Fwd: {mail['Subject']}", text), encoding="utf-8")

    def flags(self) -> dict[int, str]:
        """Flags of each mail: S seen, R answered, P passed on."""
        return {number: self._file(number).name.partition(":2,")[2] for number in range(1, self.count + 1)}

    def sent(self) -> list[list[str]]:
        """Recipient and subject of what was sent, in order."""
        files = sorted((self._folder / ".Sent" / "cur").iterdir(), key=lambda file: int(file.name.partition(".")[0]))
        return [[str(mail["To"]), str(mail["Subject"])] for mail, _ in map(_parsed, files)]

    def _file(self, number: int) -> Path:
        return next(file for name in ("cur", "new") for file in (self._folder / name).glob(f"{number}.mail*"))

    def _mark(self, number: int, flag: str) -> Path:
        file = self._file(number)
        flags = "".join(sorted({*file.name.partition(":2,")[2], flag}))
        return file.rename(self._folder / "cur" / f"{number}.mail:2,{flags}")


def _parsed(file: Path) -> tuple[EmailMessage, str]:
    """A mail and its text, decoded."""
    mail = Parser(_class=EmailMessage, policy=POLICY).parsestr(file.read_text(encoding="utf-8"))
    return mail, str(mail.get_content())


def _text(sender: str, to: str, subject: str, body: str) -> str:
    mail = EmailMessage(policy=POLICY)
    mail["From"], mail["To"], mail["Subject"] = sender, to, subject
    mail.set_content(body)
    return mail.as_string()
