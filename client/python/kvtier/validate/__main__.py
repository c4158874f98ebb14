# SPDX-License-Identifier: Apache-2.0
"""python -m kvtier.validate"""
import sys

from .command import main

sys.exit(main())
