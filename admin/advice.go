package admin

import (
	"cmp"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal/index"
)

// This file is the one table of advice to operators. `parley explain`, `dead show`,
// `send` and `agents add --wait` show it, and the API's member advice has it.

// At says where a problem was met. Unknown fields are empty.
type At struct {
	Protocol string // in which the agents spoke; "api" for the admin API
	Agent    string // directory name of the recipient
	Sender   string // directory name of the sender

	Step   string  // of a refusal: the step that refused
	Checks []Check // of a refusal
}

// Advise gives one sentence about what an operator can do about a problem; "" if there
// is nothing to say. The reason in the protocol counts first, then the reason alone, the
// failed check of a refusal, and the code.
func Advise(p Problem, at At) string {
	checks, byProtocol := checkAdvice[at.Protocol], reasonAdvice[p.Reason]
	if p.Code == parley.OutcomeUnknown && p.Reason == parley.HubStops {
		byProtocol = nil // a dead letter: the hub does not go on with it
	}
	text := cmp.Or(byProtocol[at.Protocol], byProtocol[""])
	if p.Source != parley.ByPeer && p.Source != parley.ByNetwork {
		failed := checks[at.Step]
		for _, c := range at.Checks {
			if !c.OK {
				failed = cmp.Or(failed, checks[c.Name])
			}
		}
		text = cmp.Or(text, failed, codeAdvice[p.Code])
	}
	if at.Protocol == apiProtocol && at.Step == "" && p.Code == parley.Malformed {
		return "" // the text of the API's own error says what to change
	}
	return strings.NewReplacer("{agent}", nameOr(at.Agent, "AGENT"), "{sender}", nameOr(at.Sender, "SENDER"),
		"{protocol}", nameOr(at.Protocol, "PROTOCOL")).Replace(cmp.Or(text, codeAdvice[p.Code]))
}

// nameOr is a name that fits in a command; other is for what a guest merely claims.
func nameOr(name, other string) string {
	if parley.CheckName(name) != nil {
		return other
	}
	return name
}

// reasonAdvice is the advice by reason and protocol; "" is for all other protocols.
// {agent}, {sender} and {protocol} stand for names.
var reasonAdvice = map[parley.Reason]map[string]string{
	// The hub's rules.
	parley.NoSuchAgent: {"": "`parley agents` lists the agents; `parley agents add` adds one"},
	parley.NotExposed: {"": "`parley agents expose {agent} {protocol}` lets agents of that protocol reach it; name its " +
		"other protocols too, because the list replaces the earlier one"},
	parley.AssuranceLow: {
		"": "sign the message with an enrolled key, or lower policy.assurance, or that of a [[require]] rule for {agent}",
		"uagents": "send it from an agent1q… address, which signs, and not as a user1q…; or lower policy.assurance, or " +
			"that of a [[require]] rule for {agent}",
		"a2e": "an A2E session proves no more than its token: set assurance = \"session\" in a [[require]] rule for {agent}",
		"agh": "send it as a verified handle with agh.trust, or set assurance = \"session\" in a [[require]] rule for " +
			"{agent}",
	},
	parley.NotAllowed: {"": "add an [[allow]] rule to parley.toml that lets {sender} call {agent}; `parley config " +
		"reload` applies it"},
	parley.RoleLow: {"": "set PARLEY_TOKEN to a token with that role (`parley tokens add NAME --role ROLE` makes one); " +
		"on the hub's machine unset it"},

	// The hub's limits.
	parley.BodySize: {"": "send less at once, or raise limits.body",
		"a2e": "send less at once: a frame of A2E cannot be larger, whatever limits.body says"},
	parley.PartsNumber: {"": "send fewer parts in one message: `parley send` sends one"},
	parley.SenderRate:  {"": "send more slowly, or raise limits.sender_rate"},
	parley.UnknownRate: {"": "sign the messages, or raise limits.unknown_rate",
		"uagents": "send from an agent1q… address, which signs, or raise limits.unknown_rate and uagents.unsigned_rate"},
	parley.PairRate: {"": "send more slowly, or raise rate in the [[limit]] rule for {sender} and {agent}"},
	parley.GuestBudget: {"": "enrol the sender with `parley agents add`, so that it is no guest; or raise the budget in " +
		"[guests]"},
	parley.MailboxFull: {"": "start {agent}, so that it fetches its messages; `parley agents show {agent}` counts those " +
		"that wait"},
	parley.OpenRequests: {"": "wait until {agent} has answered some of its requests; `parley agents show {agent}` " +
		"counts them"},
	parley.PeerAnswerLarge: {
		"":        "let {agent} answer with less, or with a link: it has done the work, so `parley dead retry` is no help",
		"uagents": "raise limits.body, or let {agent} answer with less: it has done the work, so a retry is no help",
	},

	// The hub itself.
	parley.HubStops: {"": "nothing: the hub goes on with recorded messages when it runs again (`parley serve`)"},
	parley.HubStorage: {"": "`parley doctor` checks the hub's journal and disk; its log has the cause",
		"agh": "`parley doctor` checks the hub's journal, and its NATS server (listen.agh or agh.url); its log has the " +
			"cause"},
	parley.HubKey: {"": "`parley keys list` shows whether the keyring has the key of {sender} for {protocol}; the hub's " +
		"log has the cause"},

	// The network.
	parley.HostUnknown: {"": "correct the host name in the address of {agent} (`parley agents show {agent}`), or the " +
		"name service of the hub's machine",
		"uagents": "correct the host name of the endpoint: agents.{agent}.uagents.endpoint, or what the agent registers"},
	parley.AddressGuard: {"": "add the address to network.allow in parley.toml, if the hub may call it; `parley config " +
		"reload` applies it"},
	parley.ConnectionRefused: {
		"":    "start {agent}, or correct its address; `parley doctor {agent}` checks the way",
		"a2e": "start the host of {agent}, or correct agents.{agent}.a2e.url; `parley doctor {agent}` checks the way",
		"agh": "start the NATS server at agh.url; `parley doctor {agent}` checks the way",
	},
	parley.ConnectionLost: {"": "look at the log of {agent}, or of the proxy before it; `parley doctor {agent}` checks " +
		"the way"},
	parley.NoRoute: {"": "let the hub's network reach the address of {agent}; `parley doctor {agent}` checks the way"},
	parley.NoAnswer: {"": "see whether {agent} hangs, or a firewall drops packets; `parley doctor {agent}` checks the " +
		"way"},
	parley.CertificateUnknown: {"": "add the authority of {agent}'s certificate to tls.ca in parley.toml, if you trust " +
		"it, and restart the hub"},
	parley.CertificateName: {"": "put the host name of the certificate in the address of {agent} (`parley agents show " +
		"{agent}`), or give its server a certificate for that host"},
	parley.CertificateExpired: {"": "let the operator of {agent} renew the certificate of its server; `parley doctor " +
		"{agent}` checks it"},
	parley.CertificateBad: {"": "let the operator of {agent} replace the certificate of its server; `parley doctor " +
		"{agent}` checks it"},
	parley.NotConnected: {
		"":    "start {agent}, so that it connects to the hub; `parley agents show {agent}` counts what waits for it",
		"a2e": "start {agent}: it has to connect with its token and call parley_inbox; `parley doctor {agent}` checks it",
		"agh": "start the peer {agent}: it has to greet in its channel every agh.greet_interval",
		"asp": "start {agent}: it has to take the hub's invitation to the session from the hub's ASP server; `parley " +
			"agents show {agent}` has its agent URI",
		"mcp": "start `parley mcp attach {agent} -- COMMAND` beside the MCP server; an agent that calls the hub has to " +
			"call parley_inbox",
		apiProtocol: "`parley listen {agent}` reads its inbox",
	},
	parley.NoAddress: {
		"": "give {agent} an address in a protocol that is switched on: `parley agents add {agent}` (its help lists the " +
			"flags)",
		"uagents": "let {agent} register with this hub, or set agents.{agent}.uagents.endpoint or uagents.registry",
		"asp":     "let {agent} register its card here: `parley agents add {agent} --asp CARD`",
	},

	// The other agent.
	parley.KeyUnknown: {
		"": "enrol the hub's public key at {agent}: `parley keys export-public hub` prints it",
		"samvad": "enrol the hub's own public key at {agent}, under the hub's identity (trustPeer, trust_peer): `parley " +
			"keys export-public hub --protocol samvad` prints it, `parley agents add` the lines",
		"uagents": "{agent} wants a signature by an agent1q… address, which is its key: send as an agent, whose stand-in " +
			"signs (`parley keys export-public {sender} --protocol uagents`), not as an unsigned user",
		"a2e": "A2E has tokens in place of keys: put the host's token into agents.{agent}.a2e.token_file",
		"agh": "{agent} wants a verified handle, and stand-ins have none: let its operator trust the plain peer id of " +
			"{sender}, which `parley agents show {sender}` has",
		"asp": "enrol the public key of {sender}'s stand-in at {agent}: `parley keys export-public {sender} --protocol " +
			"asp` prints it",
	},
	parley.WrongToken: {
		"":       "put the token that {agent} expects into its token_file, agents.{agent}.{protocol}.token_file",
		"samvad": "put the bearer token that {agent} expects into the file of agents.{agent}.samvad.token_file",
		"a2e": "put the token that the host expects into the file of agents.{agent}.a2e.token_file; `parley config " +
			"reload` reads it",
		"agh": "correct agh.credentials, with which the hub connects to agh.url",
	},
	parley.PeerForbids: {
		"": "let the operator of {agent} permit the call; `parley agents show {sender}` has the id to permit",
		"samvad": "the delegation does not reach to {agent}: send with one that does, or set " +
			"agents.{agent}.samvad.delegate",
		"a2e": "let the host's operator permit this tool for the hub's token (agents.{agent}.a2e.token_file)",
	},
	parley.PeerRole: {
		"": "the role of the caller is too weak at {agent}: let its operator raise it; `parley agents show {sender}` has " +
			"the id",
		"samvad": "the trust tier of the hub is too weak for the skill: let the operator of {agent} add the hub's identity " +
			"to allowedPeers (`parley agents add` prints it), or set agents.{agent}.samvad.token_file",
		"asp": "the role or trust score of {sender}'s stand-in is too weak at {agent}: let its operator raise it; " +
			"`parley agents show {sender}` has the agent URI",
	},
	parley.PeerRate: {
		"": "this is {agent}'s own rate limit, not the hub's: send more slowly, for example by a [[limit]] rule for " +
			"{agent}, or let its operator raise it",
		"samvad": "this is {agent}'s own rate limit or token budget, for the hub as one sender: send more slowly, for " +
			"example by a [[limit]] rule for {agent}, or let its operator raise rateLimit on its card",
	},
	parley.PeerBusy: {"": "wait: {agent} is full, or starts or stops; `parley doctor {agent}` checks the way"},
	parley.PeerSilent: {"": "{agent} has the message: look at its log, or wait longer (`parley send --wait`, " +
		"delivery.timeout)"},
	parley.PeerClock: {"": "set the clocks of {agent} and of the hub (NTP); `parley doctor` checks the hub's"},
	parley.PeerContent: {"": "make the content what {agent} takes: `parley agents show {agent} --json` has the schemas " +
		"of its skills"},
	parley.PeerUnsupported: {"": "{agent} does not know such messages: `parley agents show {agent}` lists its skills"},
	parley.PeerAnswer: {"": "see whether a {protocol} agent answers at the address of {agent}: `parley doctor {agent}` " +
		"checks the way"},
	parley.PeerGone: {"": "correct the skill or the id of {agent}: `parley agents show {agent}` has those that the hub " +
		"knows"},
	parley.PeerRefused: {"": "the text is {agent}'s own reason; its log, or its operator, says more (`parley agents " +
		"show {agent}`)"},
	parley.PeerCancelled: {"": "{agent} gave the work up: its log has the cause; `parley send` sends it again"},
	parley.PeerFailed: {"": "{agent} failed while working: its log has the cause; `parley send` sends it again once " +
		"that is mended"},
}

// codeAdvice is the advice for errors without a reason.
var codeAdvice = map[parley.Code]string{
	parley.Malformed:       "`parley inspect` shows the error in the message",
	parley.TooLarge:        "send less, or raise limits.body",
	parley.Unauthenticated: "the agent needs more proof than the message has: sign it, or lower policy.assurance",
	parley.Stale:           "set the sender's clock (NTP), and sign each message when it is sent",
	parley.Replayed:        "the hub has this message already; send a new one with a new nonce or id",
	parley.Forbidden:       "let an [[allow]] rule of the configuration permit this sender to call this agent",
	parley.UnknownAgent: "`parley agents` lists the agents; an agent in the list may not be exposed in the " +
		"sender's protocol: `parley agents expose {agent} {protocol}`",
	parley.UnknownSkill:   "`parley agents show {agent}` lists the agent's skills",
	parley.InvalidContent: "make the content fit the skill's schema, which the error shows",
	parley.Unsupported:    "the recipient's protocol cannot carry this; send it in another form",
	parley.RateLimited:    "send more slowly, or raise limits.sender_rate",
	parley.Loop:           "two hubs route to each other, or agents call each other in a circle: remove one of the routes",
	parley.Conflict:       "another message or action changed the state first; look at it and try again",
	parley.Unavailable:    "try again; `parley agents show {agent}` shows whether the agent is paused or has no address",
	parley.NoSpace:        "free space on the disk of the data directory; the hub then continues by itself",
	parley.TimedOut:       "wait longer (--wait); `parley doctor {agent}` checks whether the agent can be reached",
	parley.Cancelled:      "the sender cancelled it",
	parley.Rejected:       "the recipient refused it: its text has the reason",
	parley.HandlerFailed:  "the recipient failed while working on it: its own log has the cause",
	parley.OutcomeUnknown: "the recipient may have received it; check there before you retry: `parley dead`",
	parley.Internal:       "the hub's log has the cause; if it is a fault of Parley, report it with this output",
}

// checkAdvice is the advice for refusals by the protocol's server, by protocol and the
// name of the step or of the failed check.
var checkAdvice = map[string]map[string]string{
	apiProtocol: {
		"token": "send Authorization: Bearer with the secret of one of the hub's tokens: `parley tokens` lists them, " +
			"`parley tokens add NAME` issues one",
		"origin": "call the admin API by its IP address or localhost, and not from a web page of another origin",
	},
	"samvad": {
		"transport": "send a POST with Content-Type: application/json, uncompressed, to the agent's " +
			"/agent/message, /agent/task or /agent/stream",
		"envelope": "make the body a SAMVAD 1.2 envelope: `parley inspect` shows which member is wrong",
		"recipient": "set \"to\" to the id in the card of the agent at that URL; a card that was fetched " +
			"elsewhere or long ago has another",
		"freshness": "set the sender's clock (NTP): a message may be 300 s old and 60 s ahead; and sign each " +
			"message when it is sent, not before",
		"replay": "make a new nonce for every message, repeats included",
		"headers": "sign with one signature over (\"@method\" \"@path\" \"content-digest\") with keyid and " +
			"created; `parley inspect` shows what is missing",
		"digest": "compute Content-Digest over the very bytes that are sent; a proxy or a JSON library " +
			"changed the body after it was signed",
		"key": "enrol the sender's key: `parley keys enroll AGENT --key BASE64`, or `parley agents add " +
			"NAME --id agent://… --key BASE64` if it is new here",
		"signature": "sign with the private key that belongs to the enrolled public key, over the path that is " +
			"requested; `parley inspect` shows the bytes that must be signed",
		"limits":     "send more slowly, or raise limits.sender_rate",
		"delegation": "get a new delegation token whose scope holds this skill and whose depth is not used up",
		"injection": "the payload holds an instruction pattern; rephrase it, or let the agent's operator switch " +
			"off the scan for this skill",
		"skill": "call a skill of the agent's card, in a mode that it offers: `parley agents show AGENT`",
		"trust": "the skill is for trusted peers, or wants a token: let the agent's operator add the sender " +
			"to allowedPeers",
		"callback": "use an https callback URL at a public address, or add its network to network.allow",
		"payload":  "make the payload fit the skill's input schema: `parley agents show AGENT --json` has it",
	},
	"a2a": {
		"caller": "give the caller a token that holds: `parley tokens add NAME --agent AGENT` issues one, and " +
			"callers.issuer names the issuers that the hub trusts",
		"verify": "give the caller a token (`parley tokens add NAME --agent AGENT`), or open the agent to guests: " +
			"agents.NAME.a2a.guests",
	},
	"mcp": {
		"caller": "give the client a token that holds: `parley tokens add NAME --agent AGENT` issues one, and " +
			"callers.issuer names the issuers that the hub trusts",
		"verify": "give the client a token (`parley tokens add NAME --agent AGENT`), or open the agent to guests: " +
			"agents.NAME.mcp.guests",
	},
	"a2e": {
		"handshake": "give the agent a token that the hub knows, as auth_token: the one that `parley agents add " +
			"NAME --a2e new` printed, or that of its token_file",
	},
}

// advise adds advice to a problem of a message from sender to agent.
func (a *Admin) advise(p *Problem, agent, sender string) {
	if p != nil {
		p.Advice = Advise(*p, At{Protocol: a.protocolOf(agent), Agent: agent, Sender: sender})
	}
}

// protocolOf is the protocol in which the hub speaks with an agent; "" if it is not known.
func (a *Admin) protocolOf(agent string) string {
	if e, ok := a.c.Hub.Directory().Agent(agent); ok && len(e.Native()) > 0 {
		return e.Native()[0]
	}
	return ""
}

// adviceOn gives the advice about a message and its deliveries, as [Recorded] has it.
func (a *Admin) adviceOn(m *index.Message) map[string]string {
	out := map[string]string{}
	add := func(key string, r *index.Reason, agent, sender string) {
		if r == nil {
			return
		}
		p := &Problem{Code: r.Code, Source: r.Source, Reason: r.Reason}
		if a.advise(p, agent, sender); p.Advice != "" {
			out[key] = p.Advice
		}
	}
	if m.Kind == parley.Failure {
		add("", m.Error, m.From, m.To)
	} else {
		add("", m.Error, m.To, m.From)
	}
	for _, d := range m.Deliveries {
		add(d.To, d.Error, d.To, m.From)
	}
	return out
}
