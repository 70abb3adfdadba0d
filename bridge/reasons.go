package bridge

import (
	"cmp"
	"strings"

	"github.com/parley-hub/parley"
)

// PeerReasons gives, by protocol, the reason of each code with which agents refuse or
// fail. A code is one of the protocol's own, or an HTTP status where agents answer with
// nothing more. Other codes have the usual reason of the hub's own code: see
// [parley.Error.FromPeer].
var PeerReasons = map[string]map[string]parley.Reason{
	"samvad": { // response schema, and the codes of deployed agents
		"AUTH_FAILED": parley.KeyUnknown, "403": parley.PeerRole, "DELEGATION_EXCEEDED": parley.PeerForbids,
		"The sender is not allowed to use this skill.":  parley.PeerRole, // texts of Parley's own server
		"The timestamp is outside the accepted window.": parley.PeerClock,
		"The delegation token is not valid.":            parley.PeerForbids,
		"REPLAY_DETECTED":                               parley.PeerClock, "TIMESTAMP_EXPIRED": parley.PeerClock,
		"SKILL_NOT_FOUND": parley.PeerGone, "NOT_FOUND": parley.PeerGone,
		"SCHEMA_INVALID": parley.PeerContent, "INJECTION_DETECTED": parley.PeerContent,
		"RATE_LIMITED": parley.PeerRate, "TOKEN_BUDGET_EXCEEDED": parley.PeerRate,
		"AGENT_UNAVAILABLE": parley.PeerFailed,
	},
	"uagents": { // texts of the reference agents, and statuses
		"Signature verification failed": parley.KeyUnknown, "Envelope signature is missing": parley.KeyUnknown,
		"Message must be sent from verified agent address": parley.KeyUnknown,
		"unable to route envelope":                         parley.PeerGone,
		"Message does not conform to expected schema":      parley.PeerContent,
		"contents do not match envelope schema":            parley.PeerContent,
		"Query envelope expired":                           parley.PeerSilent,
		"401":                                              parley.PeerForbids, "403": parley.PeerForbids,
		"404": parley.PeerGone, "410": parley.PeerGone, "413": parley.PeerContent, "422": parley.PeerContent,
		"429": parley.PeerRate, "502": parley.PeerBusy, "503": parley.PeerBusy, "504": parley.PeerBusy,
		"500": parley.PeerFailed,
	},
	"a2e": { // A2E §11; detail.reason of an error counts before its code
		"auth_failed": parley.WrongToken, "no_handshake": parley.WrongToken, "unauthorized": parley.PeerForbids,
		"tool_denied": parley.PeerForbids, "capability_missing": parley.PeerForbids,
		"parse_error": parley.PeerContent, "schema_violation": parley.PeerContent, "frame_too_large": parley.PeerContent,
		"invalid_message": parley.PeerRefused, "unknown_type": parley.PeerUnsupported,
		"version_mismatch": parley.PeerUnsupported, "unknown_tool": parley.PeerGone, "unknown_skill": parley.PeerGone,
		"too_many_requests": parley.PeerRate, "queue_full": parley.PeerBusy, "shutting_down": parley.PeerBusy,
		"out_of_memory": parley.PeerBusy, "memory_full": parley.PeerBusy, "timeout": parley.PeerSilent,
		"session refused with status 429": parley.PeerRate,
		"runtime_error":                   parley.PeerFailed, "sandbox_crash": parley.PeerFailed,
		"tool_error": parley.PeerFailed, "skill_error": parley.PeerFailed, "memory_not_found": parley.PeerGone,
	},
	"agh": { // reason codes, and states, of receipts and traces
		"malformed": parley.PeerContent, "invalid_surface": parley.PeerContent, "legacy_field_rejected": parley.PeerContent,
		"expired": parley.PeerClock, "duplicate": parley.PeerClock,
		"unsupported_kind": parley.PeerUnsupported, "unsupported_profile": parley.PeerUnsupported,
		"unsupported": parley.PeerUnsupported, "verification_failed": parley.KeyUnknown,
		"not_target": parley.PeerGone, "not_found": parley.PeerGone, "conversation_not_found": parley.PeerGone,
		"work_closed": parley.PeerGone, "work_container_mismatch": parley.PeerRefused,
		"busy": parley.PeerBusy, "internal": parley.PeerFailed, "failed": parley.PeerFailed,
		"canceled": parley.PeerCancelled, "rejected": parley.PeerRefused,
	},
	"a2a": { // JSON-RPC codes, HTTP statuses, and states of tasks
		"-32001": parley.PeerGone, "-32002": parley.PeerRefused, "-32003": parley.PeerUnsupported,
		"-32004": parley.PeerUnsupported, "-32005": parley.PeerContent, "-32006": parley.PeerFailed,
		"-32007": parley.PeerUnsupported, "-32008": parley.PeerUnsupported, "-32009": parley.PeerUnsupported,
		"-32700": parley.PeerContent, "-32600": parley.PeerContent, "-32601": parley.PeerUnsupported,
		"-32602": parley.PeerContent, "-32603": parley.PeerFailed, "-32000": parley.PeerFailed,
		"-31401": parley.WrongToken, "-31403": parley.PeerForbids,
		"400": parley.PeerContent, "401": parley.WrongToken, "403": parley.PeerForbids, "404": parley.PeerGone,
		"405": parley.PeerGone, "410": parley.PeerGone, "413": parley.PeerContent, "415": parley.PeerContent,
		"422": parley.PeerContent, "429": parley.PeerRate, "500": parley.PeerFailed, "501": parley.PeerUnsupported,
		"502": parley.PeerBusy, "503": parley.PeerBusy, "504": parley.PeerBusy,
		"301": parley.PeerGone, "302": parley.PeerGone, "303": parley.PeerGone, "307": parley.PeerGone,
		"308":      parley.PeerGone,
		"rejected": parley.PeerRefused, "failed": parley.PeerFailed, "canceled": parley.PeerCancelled,
	},
	"mcp": { // JSON-RPC codes, HTTP statuses, and results with isError
		"-32700": parley.PeerContent, "-32600": parley.PeerContent, "-32601": parley.PeerUnsupported,
		"-32602": parley.PeerContent, "-32603": parley.PeerFailed, "-32002": parley.PeerGone,
		"-32020": parley.PeerUnsupported, "-32021": parley.PeerUnsupported, "-32022": parley.PeerUnsupported,
		"-32042": parley.PeerUnsupported,
		"400":    parley.PeerContent, "401": parley.WrongToken, "403": parley.PeerForbids, "404": parley.PeerGone,
		"405": parley.PeerGone, "406": parley.PeerUnsupported, "410": parley.PeerGone, "413": parley.PeerContent,
		"415": parley.PeerContent, "422": parley.PeerContent, "429": parley.PeerRate, "500": parley.PeerFailed,
		"501": parley.PeerUnsupported, "502": parley.PeerBusy, "503": parley.PeerBusy, "504": parley.PeerBusy,
		"301": parley.PeerGone, "302": parley.PeerGone, "303": parley.PeerGone, "307": parley.PeerGone,
		"308":     parley.PeerGone,
		"isError": parley.PeerFailed,
	},
	"asp": { // rejection codes
		"unauthorized": parley.PeerForbids, "insufficient_trust_score": parley.PeerRole,
		"escalation_required": parley.PeerRole, "schema_unsupported": parley.PeerContent,
		"budget_exceeded": parley.PeerRate, "capacity_unavailable": parley.PeerBusy,
		"policy_violation": parley.PeerRefused, "unspecified": parley.PeerRefused,
		"timeout": parley.PeerSilent, "duplicate": parley.PeerClock,
	},
}

// Answered gives e as the error of an agent that answered with text and codes, of which
// the first known one gives the reason. The detail quotes them.
func Answered(e *parley.Error, protocol, text string, codes ...string) *parley.Error {
	var reason parley.Reason
	for _, c := range append([]string{text}, codes...) {
		reason = cmp.Or(reason, PeerReasons[protocol][c])
	}
	if reason == "" {
		reason = e.FromPeer().Reason
	}
	var said []string
	for _, s := range append(codes, text) {
		if s != "" && (len(said) == 0 || said[len(said)-1] != s) {
			said = append(said, s)
		}
	}
	detail := strings.Join(said, ": ")
	switch reason {
	case parley.KeyUnknown, parley.WrongToken:
		detail = "wrong credentials: it answered " + cmp.Or(detail, "so")
	default:
		if detail != "" {
			detail = "it answered " + detail
		}
	}
	return e.With(parley.ByPeer, reason, strings.ToValidUTF8(clip(detail), ""))
}

// AnswerTooLarge gives e as the error for an answer over a limit of the hub, in bytes.
// The agent has done the work, so a retry is no help: e must not be retryable.
func AnswerTooLarge(e *parley.Error, limit string) *parley.Error {
	return e.With(parley.ByLimit, parley.PeerAnswerLarge, "its answer is larger than "+limit)
}

// NotUnderstood gives e as the error for an answer that is not the protocol's.
func NotUnderstood(e *parley.Error, err error) *parley.Error {
	detail := "its answer is not understood"
	if err != nil {
		detail += ": " + err.Error()
	}
	return e.With(parley.ByPeer, parley.PeerAnswer, strings.ToValidUTF8(clip(detail), ""))
}
