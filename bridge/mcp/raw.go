package mcp

import "github.com/parley-hub/parley/internal/jsonx"

// metaRaw is the member of a result's _meta that has its structuredContent as it was written, as a string.
const metaRaw = "hub.parley/raw"

// withRaw copies the structuredContent of a response of JSON-RPC into the _meta of its result: the SDK decodes numbers
// in it to doubles.
func withRaw(response []byte) ([]byte, error) {
	var message, result, meta map[string]jsonx.Value
	if err := jsonx.Decode(response, &message); err != nil {
		return nil, err
	}
	if jsonx.Kind(message["result"]) != '{' {
		return response, nil
	}
	if err := jsonx.Decode(message["result"], &result); err != nil {
		return nil, err
	}
	content := result["structuredContent"]
	if jsonx.Kind(result["_meta"]) == '{' {
		if err := jsonx.Decode(result["_meta"], &meta); err != nil {
			return nil, err
		}
	}
	if _, foreign := meta[metaRaw]; content == nil && !foreign {
		return response, nil
	}
	delete(meta, metaRaw) // it is the hub's
	if content != nil {
		quoted, err := jsonx.Encode(string(content))
		if err != nil {
			return nil, err
		}
		if meta == nil {
			meta = map[string]jsonx.Value{}
		}
		meta[metaRaw] = quoted
	}
	var err error
	if result["_meta"], err = jsonx.Encode(meta); err != nil {
		return nil, err
	}
	if message["result"], err = jsonx.Encode(result); err != nil {
		return nil, err
	}
	return jsonx.Encode(message)
}
