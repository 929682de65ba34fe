#!/usr/bin/env python3
"""What reading_grade.py takes for prose, and its formula."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import reading_grade  # noqa: E402  (its folder is put on the path above)

PAGE = """# A heading is not a sentence

One sentence in
two lines, with `--a-flag`. See [the other page](other.md#part), version 1.5, now!

```bash
no sentence at all here
```

| no | sentence | in tables |
| --- | --- | --- |

1. The first of two items
2. The second one, which
   goes on here:

   ```bash
   no sentence here either
   ```

Two words.
**A bold start.** And the end of it.
"""


class ReadingGradeTest(unittest.TestCase):
    def test_prose(self):
        self.assertEqual(
            reading_grade.prose(PAGE),
            [
                "One sentence in two lines, with code.",
                "See the other page, version 1.5, now!",
                "The first of two items",
                "The second one, which goes on here:",
                "**A bold start.",
                "And the end of it.",
            ],
        )

    def test_grade(self):
        # Two sentences of three words; every word has two syllables.
        self.assertAlmostEqual(reading_grade.grade(["One two three.", "Four five six."], lambda word: 2), 0.39 * 3 + 11.8 * 2 - 15.59)
        self.assertEqual(reading_grade.grade([], len), 0.0)
        longer = ["This sentence is a good deal longer, and goes on for a while before it ends."]
        self.assertGreater(reading_grade.grade(longer, lambda word: 2), reading_grade.grade(["This one is short."], lambda word: 2))


if __name__ == "__main__":
    unittest.main()
