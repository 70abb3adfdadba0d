package a2a

import (
	"context"
	"encoding/json"
	"iter"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
)

// eventSeq is a stream of events. An error ends it.
type eventSeq = iter.Seq2[protocol.Event, error]

// A method is a method of the protocol in the JSON of one version: JSON-RPC calls it by its
// name, and REST by its path.
type method struct {
	shape *shape // of its parameters
	bare  bool   // it may have none
	sends bool   // it sends a message
	// call runs a method with one result. A notification waits for nothing.
	call func(ctx context.Context, h a2asrv.RequestHandler, params json.RawMessage, notification bool) (any, error)
	// stream runs a method with a stream of events; nil: it has one result.
	stream func(ctx context.Context, h a2asrv.RequestHandler, params json.RawMessage) eventSeq
}

// methods are the methods of a version by their names: A2A 1.0, section 9.4, and 0.3,
// section 7.
var methods = map[string]map[string]*method{
	V1: {
		"SendMessage":          sending((*sendParams1).request, toEvent1, false),
		"SendStreamingMessage": sending((*sendParams1).request, toEvent1, true),
		"GetTask":              unary(asIs[protocol.GetTaskRequest], a2asrv.RequestHandler.GetTask, toTask1),
		"ListTasks":            unary((*listParams1).request, a2asrv.RequestHandler.ListTasks, toListResult1),
		"CancelTask":           unary(asIs[protocol.CancelTaskRequest], a2asrv.RequestHandler.CancelTask, toTask1),
		"SubscribeToTask":      streaming(asIs[protocol.SubscribeToTaskRequest], a2asrv.RequestHandler.SubscribeToTask),
		"CreateTaskPushNotificationConfig": unary(asIs[protocol.PushConfig],
			a2asrv.RequestHandler.CreateTaskPushConfig, plainResult[*protocol.PushConfig]),
		"GetTaskPushNotificationConfig": unary(asIs[protocol.GetTaskPushConfigRequest],
			a2asrv.RequestHandler.GetTaskPushConfig, plainResult[*protocol.PushConfig]),
		"ListTaskPushNotificationConfigs": unary(asIs[protocol.ListTaskPushConfigRequest],
			a2asrv.RequestHandler.ListTaskPushConfigs, listConfigs1),
		"DeleteTaskPushNotificationConfig": unary(asIs[protocol.DeleteTaskPushConfigRequest], deleteConfig,
			plainResult[struct{}]),
		"GetExtendedAgentCard": orBare(unary(asIs[protocol.GetExtendedAgentCardRequest],
			a2asrv.RequestHandler.GetExtendedAgentCard, plainResult[*protocol.AgentCard])),
	},
	V03: {
		"message/send":      sending((*sendParams03).request, toEvent03, false),
		"message/stream":    sending((*sendParams03).request, toEvent03, true),
		"tasks/get":         unary((*taskParams03).get, a2asrv.RequestHandler.GetTask, toTask03),
		"tasks/cancel":      unary((*taskParams03).cancel, a2asrv.RequestHandler.CancelTask, toTask03),
		"tasks/resubscribe": streaming((*taskParams03).subscribe, a2asrv.RequestHandler.SubscribeToTask),
		"tasks/pushNotificationConfig/set": unary((*taskConfig03).request,
			a2asrv.RequestHandler.CreateTaskPushConfig, toConfig03),
		"tasks/pushNotificationConfig/get": unary((*taskParams03).getConfig,
			a2asrv.RequestHandler.GetTaskPushConfig, toConfig03),
		"tasks/pushNotificationConfig/list": unary((*taskParams03).listConfigs,
			a2asrv.RequestHandler.ListTaskPushConfigs, toConfigs03),
		"tasks/pushNotificationConfig/delete": unary((*taskParams03).deleteConfig, deleteConfig,
			func(struct{}) (any, error) { return nil, nil }),
		"agent/getAuthenticatedExtendedCard": orBare(unary(asIs[protocol.GetExtendedAgentCardRequest],
			a2asrv.RequestHandler.GetExtendedAgentCard, toCard03)),
	},
}

func orBare(m *method) *method { m.bare = true; return m }

// unary is a method with parameters W in JSON, which are the request Q of the SDK, whose
// result is encoded by result.
func unary[W, Q, R any](request func(*W) (*Q, error),
	do func(a2asrv.RequestHandler, context.Context, *Q) (R, error), result func(R) (any, error)) *method {
	return &method{shape: shapeOf[W](), call: func(ctx context.Context, h a2asrv.RequestHandler,
		params json.RawMessage, _ bool) (any, error) {
		q, err := readParams(params, request)
		if err != nil {
			return nil, err
		}
		r, err := do(h, ctx, q)
		if err != nil {
			return nil, err
		}
		return result(r)
	}}
}

// sending is SendMessage, or SendStreamingMessage. As a notification both record the
// message and wait for nothing.
func sending[W any](request func(*W) (*protocol.SendMessageRequest, error),
	result func(protocol.Event) (any, error), streams bool) *method {
	m := &method{shape: shapeOf[W](), sends: true, call: func(ctx context.Context, h a2asrv.RequestHandler,
		params json.RawMessage, notification bool) (any, error) {
		q, err := readParams(params, request)
		if err != nil {
			return nil, err
		}
		if notification {
			if q.Config == nil {
				q.Config = &protocol.SendMessageConfig{}
			}
			q.Config.ReturnImmediately = true
		}
		r, err := h.SendMessage(ctx, q)
		if err != nil {
			return nil, err
		}
		return result(r)
	}}
	if streams {
		m.stream = streaming(request, a2asrv.RequestHandler.SendStreamingMessage).stream
	}
	return m
}

// streaming is a method with a stream. As a notification it has no effect.
func streaming[W, Q any](request func(*W) (*Q, error),
	do func(a2asrv.RequestHandler, context.Context, *Q) eventSeq) *method {
	return &method{shape: shapeOf[W](),
		call: func(_ context.Context, _ a2asrv.RequestHandler, params json.RawMessage, _ bool) (any, error) {
			_, err := readParams(params, request)
			return nil, err
		},
		stream: func(ctx context.Context, h a2asrv.RequestHandler, params json.RawMessage) eventSeq {
			q, err := readParams(params, request)
			if err != nil {
				return failedStream(err)
			}
			return do(h, ctx, q)
		}}
}

// readParams decodes parameters, once.
func readParams[W, Q any](params json.RawMessage, request func(*W) (*Q, error)) (*Q, error) {
	var w W
	if len(params) > 0 {
		if err := decodeParams(params, &w); err != nil {
			return nil, err
		}
	}
	return request(&w)
}

func asIs[Q any](q *Q) (*Q, error) { return q, nil }

func plainResult[R any](r R) (any, error) { return r, nil }

func deleteConfig(h a2asrv.RequestHandler, ctx context.Context, r *protocol.DeleteTaskPushConfigRequest) (
	struct{}, error) {
	return struct{}{}, h.DeleteTaskPushConfig(ctx, r)
}

func toTask1(t *protocol.Task) (any, error)  { return form1.task(t) }
func toTask03(t *protocol.Task) (any, error) { return form03.task(t) }

func toEvent03(e protocol.Event) (any, error) { return new(events03).event(e) }
