package agh_test

import (
	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghnats"
)

func transport(nc *nats.Conn) agh.Transport { return &aghnats.Transport{Conn: nc} }
