#!/bin/sh
# Makes a Python environment in DIR with the SDKs that the tests talk to, at
# the versions that they were written for. The server of the tests needs
# uvicorn, which the SDK imports and does not require.
set -eu
if [ $# -ne 1 ]; then
	echo "usage: interop/setup.sh DIR" >&2
	exit 2
fi
python=$(command -v python3 || command -v python) || {
	echo "interop/setup.sh: no python3" >&2
	exit 1
}
"$python" -m venv "$1"
"$1/bin/python" -m pip install --quiet --disable-pip-version-check 'samvad==0.2.0' 'uvicorn>=0.30,<1' 'uagents==0.25.5' 'nats-py>=2.9,<3' 'cryptography>=42,<50'
"$1/bin/python" -c 'import samvad, uvicorn; print("samvad", samvad.__version__)'
echo "PARLEY_PYTHON=$1/bin/python"
