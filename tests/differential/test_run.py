"""The differential harness itself: what must fail does, in each way in which a run can be wrong."""

import contextlib
import io
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import run  # noqa: E402

LISTED = {"behaviour": "recv_peek", "role": "a", "preloaded": ["a", "ab"], "lines": [], "reason": "test", "workaround": ""}


class Harness(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.program = run.binary("behaviours")
        cls.by_name = {b.name: b for b in run.behaviours(cls.program)}

    def judged(self, name, known=None, env=None, program=None):
        stage = run.Stage(program or self.program, "packet", env or {})
        self.addCleanup(stage.close)
        stage.open()
        with contextlib.redirect_stdout(io.StringIO()):
            return "\n".join(run.judge(stage, self.by_name[name], known, False, False))

    def test_same_is_accepted(self):
        self.assertEqual(self.judged("recv_peek"), "")

    def test_kernel_against_kernel_is_no_success(self):
        """Nothing is preloaded: all transcripts agree, and that is a failure."""
        text = self.judged("recv_peek", env={"LD_PRELOAD": ""})
        self.assertIn("role a, served by:", text)
        self.assertIn("ring NO", text)

    def test_a_difference_fails(self):
        text = self.judged("send_oob")
        self.assertIn("send_oob [a=kernel b=ours] role b differs from the kernel:", text)
        self.assertIn("+got(s) = 7", text)

    def test_another_difference_than_the_listed_one_fails(self):
        entry = {**LISTED, "behaviour": "send_oob", "role": "b", "preloaded": ["b", "ab"], "lines": ["-got(s) = 3", "+got(s) = 4"]}
        self.assertIn("in another way than listed", self.judged("send_oob", entry))

    def test_a_listed_difference_that_is_gone_fails(self):
        text = self.judged("recv_peek", {**LISTED, "lines": ["-got(s) = 3", "+got(s) = 4"]})
        self.assertIn("in another way than listed", text)
        self.assertIn("not there any more", self.judged("recv_peek", LISTED))

    def test_output_on_standard_error_fails(self):
        text = self.judged("recv_peek", env={"VMA_LOG_FILE": ""})
        self.assertIn("+stderr:", text)

    def test_the_list_is_well_formed(self):
        listed = run.read_differences(set(self.by_name), "packet")
        self.assertLessEqual(len(listed), 0.1 * len(self.by_name))
        for entry in listed.values():
            self.assertTrue(entry["reason"] and entry["workaround"] and entry["lines"], entry["behaviour"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
