#!/bin/sh
# Makes a Python environment in DIR with the SDKs that the tests talk to, at
# the versions that they were written for, and with what the A2E SDK needs. That
# SDK is in no registry: A2E_SDK is a folder with its source, or whatever else
# pip installs from. The server of the SAMVAD tests needs uvicorn, which its SDK
# imports and does not require.
set -eu
if [ $# -lt 1 ] || [ $# -gt 2 ]; then
	echo "usage: interop/setup.sh DIR [A2E_SDK]" >&2
	exit 2
fi
python=$(command -v python3 || command -v python) || {
	echo "interop/setup.sh: no python3" >&2
	exit 1
}
"$python" -m venv "$1"
pip="$1/bin/python -m pip install --quiet --disable-pip-version-check"
$pip 'samvad==0.2.0' 'uvicorn>=0.30,<1' 'uagents==0.26.1' 'uagents-core==0.4.12' 'nats-py>=2.9,<3' 'cryptography>=42,<50' \
	'fastapi>=0.115,<1' 'requests>=2,<3' 'pyyaml>=6,<7'
"$1/bin/python" -c 'import samvad, uvicorn; print("samvad", samvad.__version__)'
if [ $# -eq 2 ]; then
	# Without what it names: the newest of each does, and the tests use no
	# more than is installed above.
	$pip --no-deps "$2"
	"$1/bin/python" -c 'from importlib.metadata import version; import a2e; print("a2e-python-sdk", version("a2e-python-sdk"))'
fi
echo "PARLEY_PYTHON=$1/bin/python"
