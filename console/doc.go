// Package console is the hub's console for operators: five screens in a browser that
// show what is going on, who said what, whether it is proved, and why something was
// refused or not delivered, with the actions that put it right.
//
// # How a page is made
//
// A screen is one GET. Its handler asks [admin.Admin] as the [admin.Actor] of the
// session, and writes a page with html/template: /console/?show=failed calls
// Admin.Timeline, and shows its entries as the rows of a table. Everything that a page
// shows follows from its URL: filters, tab, chosen message, page. htmx asks for the same
// pages and puts their main part in place, so reading, filtering and retrying work
// without scripts too.
//
// The console has no query and no right of its own. Roles are checked in package admin;
// a page shows a button that the actor may not use as disabled, with the role that may.
//
// # Pages stay up to date
//
// An open page has one event stream, /console/live. A screen registers in [feeds] which
// news of the hub it wants and what it pushes: rendered elements, which take the place
// of those with the same id. New rows go on top while nobody reads further down. A page
// gets at most four pushes a second. htmx's extension for server-sent events connects,
// tries again and swaps; static/live.js says how. A hidden page has no stream; after a
// break the page is read anew. The stream alone does not keep a session.
//
// A page with a form in use has data-keep, and is not read anew. Nothing is replaced
// behind a dialog, nor on a paused page.
//
// # What guests wrote
//
// Names, contents and errors are texts of guests. html/template escapes markup. Control
// characters and direction marks are then escaped in the whole page, so that no template
// can forget them. Content is shown in <pre>, cut at 64 KiB, never as HTML or as a link.
//
// # Access
//
// A link that works once begins a session ([admin.Sessions]); a cookie continues it. A
// form that changes something needs the session's form token and comes from this
// origin. No page loads anything from elsewhere: see [policy].
package console
