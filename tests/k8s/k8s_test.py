"""The manifests in k8s/: rendered by kubectl, checked against one another, and tried on the real binaries."""

import sys
import unittest

from manifests import why_not_here

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt.

if __name__ == "__main__":
    reason = why_not_here()
    if reason:
        print(f"k8s_test.py: skipped: {reason}. Nothing of k8s/ was tested. docs/lab/kubernetes.md says what it takes.")
        sys.exit(SKIPPED)
    from live_test import *  # noqa: E402,F401,F403 pylint: disable=wildcard-import,wrong-import-position
    from manifests_test import *  # noqa: E402,F401,F403 pylint: disable=wildcard-import,wrong-import-position

    unittest.main()
