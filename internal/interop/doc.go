// Package interop holds tests against the real, published SDKs of the protocols:
// unmodified peers, in both directions.
//
// The tests of the Python SDKs (SAMVAD, uAgents) run where PARLEY_PYTHON names a Python
// interpreter that has them; setup.sh makes one:
//
//	internal/interop/setup.sh /tmp/venv
//	PARLEY_PYTHON=/tmp/venv/bin/python go test ./internal/interop
//
// The scripts in python/ and typescript/ are ours and use only the SDK's public
// interface.
//
// The tests of the SAMVAD SDK for TypeScript run where PARLEY_NODE_SDK names a
// folder whose node_modules has it. setup.sh makes DIR/node where Node and npm
// are installed: from the registry, or else from the source that SAMVAD_SDK
// names (w3rc/samvad), or else from a checkout that it makes itself:
//
//	SAMVAD_SDK=/tmp/samvad internal/interop/setup.sh /tmp/venv
//	PARLEY_NODE_SDK=/tmp/venv/node go test -run TypeScript ./internal/interop
//
// The tests of the official A2A SDKs run where PARLEY_A2A_SDKS names a folder with them:
// two versions of that for Python, which exclude each other, and that for JavaScript.
// setup.sh makes DIR/a2a. The SDK for Go needs nothing.
//
//	PARLEY_A2A_SDKS=/tmp/venv/a2a go test -run A2A ./internal/interop
//
// The tests of the official MCP SDKs, two versions each of those for Python and TypeScript, of the inspector and of the
// conformance suite run where PARLEY_MCP_SDKS names a folder with them. setup.sh makes DIR/mcp.
//
//	PARLEY_MCP_SDKS=/tmp/venv/mcp go test -run MCP ./internal/interop
//
// The A2E SDK is in no registry. setup.sh installs it from its source
// (a2eprotocol/python-sdk, version 0.1) when that is named as well:
//
//	internal/interop/setup.sh /tmp/venv /tmp/a2e-python-sdk
//
// Or else PARLEY_A2E_PYTHON names an interpreter that has pydantic, requests,
// pyyaml, fastapi and uvicorn, and A2E_SDK the folder of the source.
package interop
