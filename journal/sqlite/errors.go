package sqlite

import (
	"errors"
	"fmt"
	"syscall"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley/internal/disk"
	"github.com/parley-hub/parley/journal/store"
)

// explain turns an error of SQLite into one of package store.
func (s *Store) explain(err error) error {
	// For an error that is not SQLite's, ErrCode gives ResultError, too.
	switch _, ofSystem := errors.AsType[syscall.Errno](err); {
	case err == nil || errors.Is(err, store.ErrCorrupt):
		return err
	case disk.IsFull(err):
		return fmt.Errorf("%w: %s: %w", store.ErrNoSpace, s.label(), err)
	case ofSystem:
		return fmt.Errorf("%s: %w", s.label(), err)
	}
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultFull:
		return fmt.Errorf("%w: %s: %w", store.ErrNoSpace, s.label(), err)
	case sqlite.ResultCorrupt, sqlite.ResultNotADB, sqlite.ResultFormat,
		sqlite.ResultError, sqlite.ResultConstraint, sqlite.ResultMismatch: // the tables differ from the schema
		return s.corrupt(err)
	case sqlite.ResultTooBig:
		return fmt.Errorf("%w: %w", store.ErrTooLarge, err)
	case sqlite.ResultBusy, sqlite.ResultLocked:
		return fmt.Errorf("%w: another program has %s open and locked: %w", store.ErrBusy, s.label(), err)
	case sqlite.ResultIOErr, sqlite.ResultCantOpen, sqlite.ResultNoMem, sqlite.ResultReadOnly:
		return fmt.Errorf("%w: %s: %w", store.ErrBusy, s.label(), err)
	}
	return fmt.Errorf("%s: %w", s.label(), err)
}

func (s *Store) corrupt(err error) error {
	return fmt.Errorf(`%w: %s: %w ("parley journal check" says what is damaged, `+
		`"parley journal salvage" saves the rest)`, store.ErrCorrupt, s.label(), err)
}

// label names the store in errors.
func (s *Store) label() string {
	if s.path == "" {
		return "the journal in memory"
	}
	return s.path
}
