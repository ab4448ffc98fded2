"""Runs the test suite of pyverbs, or the modules that it is given, and prints a line for each test: name, how it ended, and
why it was skipped."""

import sys
import unittest

modules = sys.argv[1:]
sys.argv = ["run_tests.py", "--dev", "urxe0", "--gid", "0"]
from args_parser import parser  # noqa: E402, it reads the arguments

parser.parse_args()
import tests  # noqa: E402


class Lines(unittest.TestResult):
    def line(self, test, end, why=""):
        # Names are those of unittest's own output, without the module's package.
        name = test.id().removeprefix("tests.")
        print(f"\nRESULT\t{name}\t{end}\t{' '.join(str(why).split())}", flush=True)

    def addSuccess(self, test):
        self.line(test, "passed")

    def addSkip(self, test, reason):
        self.line(test, "skipped", reason)

    def addError(self, test, error):
        self.line(test, "failed", error[1])
        super().addError(test, error)
        print(self.errors[-1][1])

    def addFailure(self, test, error):
        self.line(test, "failed", error[1])
        super().addFailure(test, error)
        print(self.failures[-1][1])


loader = unittest.defaultTestLoader
(loader.loadTestsFromNames(modules) if modules else loader.loadTestsFromModule(tests)).run(Lines())
