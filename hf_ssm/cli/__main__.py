"""`python -m hf_ssm.cli`, where the script `hf-ssm` is not installed."""

import sys

from hf_ssm.cli import main

sys.exit(main())
