package mcp

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Members of a result's _meta that the hub alone writes: what the SDK does not keep of an answer.
const (
	rawMeta  = "hub.parley/raw"        // structuredContent as the server wrote it
	kindMeta = "hub.parley/resultType" // resultType, unless it is "complete" or missing
)

// maxAnswerDepth is the nesting of an answer.
const maxAnswerDepth = 100

// withRaw gives a JSON-RPC message with the raw structuredContent of its result in _meta, because the SDK reads numbers
// as doubles. It refuses what is no strict JSON object: the SDK would take duplicate members. Half a surrogate pair, as
// in a text that was cut, becomes U+FFFD.
func withRaw(message []byte) ([]byte, error) {
	message, err := strictObject(message)
	if err != nil {
		return nil, err
	}
	result := jsonx.Member(message, "result")
	if jsonx.Kind(result) != '{' {
		return message, nil
	}
	marked, err := rawResult(json.RawMessage(result))
	if err != nil {
		return nil, err
	}
	var members map[string]jsonx.Value
	if err := jsonx.Decode(message, &members); err != nil {
		return nil, err
	}
	members["result"] = jsonx.Value(marked)
	return jsonx.Encode(members)
}

// rawResult is [withRaw] for a result alone.
func rawResult(result json.RawMessage) (json.RawMessage, error) {
	result, err := strictObject(result)
	if err != nil {
		return nil, err
	}
	var members, meta map[string]jsonx.Value
	if err := jsonx.Decode(result, &members); err != nil {
		return nil, err
	}
	if m := members["_meta"]; !jsonx.IsNull(m) {
		if err := jsonx.Decode(m, &meta); err != nil {
			return nil, fmt.Errorf("_meta of the result: %w", err)
		}
	}
	if meta == nil {
		meta = map[string]jsonx.Value{}
	}
	delete(meta, rawMeta)
	delete(meta, kindMeta)
	if raw := members["structuredContent"]; !jsonx.IsNull(raw) {
		meta[rawMeta] = jsonx.AppendText(nil, string(raw))
	}
	if kind := members["resultType"]; kind != nil {
		if jsonx.Kind(kind) != '"' {
			return nil, errors.New("resultType of the result: want a string")
		}
		if text, _ := jsonx.Unquote(kind); text != "complete" {
			meta[kindMeta] = kind
		}
	}
	if len(meta) > 0 || members["_meta"] != nil {
		if members["_meta"], err = jsonx.Encode(meta); err != nil {
			return nil, err
		}
	}
	return jsonx.Encode(members)
}

// strictObject checks that b is one strict JSON object, but for half surrogate pairs, which it replaces.
func strictObject(b []byte) ([]byte, error) {
	b, _ = jsonx.ReplaceHalves(b)
	if err := jsonx.Valid(b, maxAnswerDepth); err != nil {
		return nil, err
	}
	if jsonx.Kind(b) != '{' {
		return nil, errors.New("not a JSON object")
	}
	return b, nil
}
