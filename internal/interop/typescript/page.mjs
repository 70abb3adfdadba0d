// Node's fetch asks no server whether a page may call it. becomePage makes fetch
// do what a browser does for a page of an origin (Fetch Standard, "CORS protocol"):
// the preflight, the headers that name the page, and the refusal of what the server
// does not allow.
const simpleHeaders = ['accept', 'accept-language', 'content-language']
const simpleTypes = ['application/x-www-form-urlencoded', 'multipart/form-data', 'text/plain']

export function becomePage(origin) {
  const bare = globalThis.fetch
  const page = { origin, 'sec-fetch-mode': 'cors', 'sec-fetch-site': 'cross-site' }

  function check(response) {
    const allowed = response.headers.get('access-control-allow-origin')
    if (allowed !== '*' && allowed !== origin) throw new TypeError(`CORS: the server allows ${allowed}, not ${origin}`)
  }

  globalThis.fetch = async (url, init = {}) => {
    const method = init.method ?? 'GET'
    const headers = new Headers(init.headers)
    const special = [...headers.keys()].filter(name => !simpleHeaders.includes(name) &&
      !(name === 'content-type' && simpleTypes.includes(headers.get(name)))).sort()
    if (special.length > 0 || !['GET', 'HEAD', 'POST'].includes(method)) {
      const preflight = await bare(url, {
        method: 'OPTIONS',
        redirect: 'manual',
        headers: {
          ...page,
          'access-control-request-method': method,
          'access-control-request-headers': special.join(','),
        },
      })
      check(preflight)
      if (!preflight.ok) throw new TypeError(`CORS: the preflight was answered with ${preflight.status}`)
      const list = name => (preflight.headers.get(name) ?? '').toLowerCase().split(',').map(s => s.trim())
      const refused = special.filter(name => !list('access-control-allow-headers').includes(name))
      if (refused.length > 0) throw new TypeError(`CORS: the server does not allow the headers ${refused}`)
      if (method !== 'POST' && !list('access-control-allow-methods').includes(method.toLowerCase())) {
        throw new TypeError(`CORS: the server does not allow ${method}`)
      }
    }
    for (const [name, value] of Object.entries(page)) headers.set(name, value)
    const response = await bare(url, { ...init, headers })
    check(response)
    return response
  }
}
