package uagents

// AgentPaymentProtocol 0.1.0. Amounts are decimal strings.

// Funds is an amount of a currency and how it is paid.
type Funds struct {
	Amount        string `json:"amount"`
	Currency      string `json:"currency"`
	PaymentMethod string `json:"payment_method" default:"fet_direct"`
}

// RequestPayment asks a buyer for money.
type RequestPayment struct {
	AcceptedFunds   []Funds                   `json:"accepted_funds"`
	Recipient       string                    `json:"recipient"`
	DeadlineSeconds int64                     `json:"deadline_seconds"`
	Reference       *string                   `json:"reference"`
	Description     *string                   `json:"description"`
	Metadata        *map[string]MetadataValue `json:"metadata"`
}

// CommitPayment tells the seller that the buyer has paid.
type CommitPayment struct {
	Funds         Funds                     `json:"funds"`
	Recipient     string                    `json:"recipient"`
	TransactionID string                    `json:"transaction_id"`
	Reference     *string                   `json:"reference"`
	Description   *string                   `json:"description"`
	Metadata      *map[string]MetadataValue `json:"metadata"`
}

// RejectPayment declines a request.
type RejectPayment struct {
	Reason *string `json:"reason"`
}

// CancelPayment cancels a payment.
type CancelPayment struct {
	TransactionID *string `json:"transaction_id"`
	Reason        *string `json:"reason"`
}

// CompletePayment confirms a payment.
type CompletePayment struct {
	TransactionID *string `json:"transaction_id"`
}

// MetadataValue is a text, or a map of texts when Map is not nil.
type MetadataValue struct {
	Text string
	Map  map[string]string
}

// UnionOf implements [Union].
func (MetadataValue) UnionOf() []any { return []any{"", map[string]string{}} }

// MarshalJSON writes a string or an object of strings.
func (v MetadataValue) MarshalJSON() ([]byte, error) {
	if v.Map != nil {
		return pyCompact.write(nil, stringMap(v.Map))
	}
	return pyString(nil, v.Text), nil
}

// UnmarshalJSON reads a string or an object of strings.
func (v *MetadataValue) UnmarshalJSON(b []byte) error {
	n, err := parse(b)
	if err != nil {
		return err
	}
	if s, ok := asString(n); ok {
		*v = MetadataValue{Text: s}
		return nil
	}
	wrap := &node{kind: '{', keys: []string{"metadata"}, vals: []*node{n}}
	m, err := stringsOf(wrap, "metadata")
	*v = MetadataValue{Map: m}
	return err
}

// PaymentProtocol is AgentPaymentProtocol 0.1.0, with the roles seller and
// buyer.
func PaymentProtocol() *Protocol {
	request, commit := ModelOf[RequestPayment](), ModelOf[CommitPayment]()
	reject, cancel, complete := ModelOf[RejectPayment](), ModelOf[CancelPayment](), ModelOf[CompletePayment]()
	return &Protocol{
		Name: "AgentPaymentProtocol", Version: "0.1.0",
		Interactions: []Interaction{
			{request, []*Model{commit, reject}},
			{commit, []*Model{complete, cancel}},
			{complete, nil}, {cancel, nil}, {reject, nil},
		},
		Roles: map[string][]*Model{"seller": {commit, reject}, "buyer": {request, cancel, complete}},
	}
}
