"""How an audit judges: the settings that decide the verdicts, and nothing about the data."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sremkit.errors import DataError

WORD_EPOCHS = 10  # where single words are to be judged


@dataclass(frozen=True)
class JudgingSettings:
    """The defaults were chosen on Flickr8k with 20 to 60 % shuffled captions; see docs/lab.md.

    Attributes:
        folds: parts that are left out in turn; each pair is judged by models that never saw its image.
        trained_witnesses: dual encoders that are trained, each from another start.
        warmup_epochs: passes of complementary learning, before any pair is believed.
        epochs: passes in which the believed pairs teach.
        candidates: other pairs that every pair of a fold competes with.
        word_epochs: passes in which words are learnt to be guessed from pictures, for captions that are wrong in
            one word; 0 leaves single words alone.
        wrong_pairs: about how many surely wrong pairs are made to compare the given ones with.
        precision: pairs are called mismatches as long as this share of the called is expected to be wrong.
    """

    folds: int = 3
    trained_witnesses: int = 2
    warmup_epochs: int = 3
    epochs: int = 4
    batch_size: int = 512
    learning_rate: float = 1e-3
    hidden_size: int = 1024
    embed_size: int = 512
    dropout: float = 0.5
    scale: float = 20.0
    candidates: int = 512
    word_epochs: int = 0
    wrong_pairs: int = 200_000
    precision: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise DataError(
                f"judging leaves out one part in turn, so it needs 2 folds or more, got {self.folds}"
            )
        if not 0 < self.precision < 1:
            raise DataError(f"precision is a share between 0 and 1, got {self.precision}; 0.95 is usual")
        for name in ("trained_witnesses", "epochs", "batch_size", "candidates", "wrong_pairs"):
            if getattr(self, name) < 1:
                raise DataError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.word_epochs < 0:
            raise DataError(f"word_epochs must be 0 or more, got {self.word_epochs}")

    def of_a_fold(self) -> dict[str, float]:
        """Everything that a fold's result depends on; the calling of mismatches comes after the folds."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "precision"}
