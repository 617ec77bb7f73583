// The page of a node: a frame around its views, and the state that they share.
import { render } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { html } from 'htm/preact';
import { Access } from './access.js';
import { get, post, session, watch } from './api.js';
import { Chat } from './chat.js';
import { Cluster } from './cluster.js';
import { Models } from './models.js';
import { Plan } from './plan.js';
import { text } from './strings.js';

const events_max = 200;
const views = { cluster: Cluster, models: Models, plan: Plan, access: Access, chat: Chat };
const viewOf = () => {
  const name = location.hash.replace(/^#/, '').split('?')[0];
  return views[name] ? name : 'cluster';
};

// The code of a link from `strata page` is behind the #, which no server sees, and goes from the address at once.
async function useLink() {
  const code = /^#login=([A-Za-z0-9-]+)$/.exec(location.hash)?.[1];
  if (!code) return '';
  history.replaceState(null, '', `${location.pathname}#cluster`);
  try {
    session.set((await post('/session', { code })).token);
    return '';
  } catch (error) {
    return error.message;
  }
}

function Login({ onToken, wrong }) {
  const [token, setToken] = useState('');
  const submit = (event) => {
    event.preventDefault();
    onToken(token.trim());
  };
  return html`<form class="card login" onSubmit=${submit}>
    <h1>${text.login.title}</h1>
    <p>${text.login.words}</p>
    <label>${text.login.label}
      <input type="password" autocomplete="off" value=${token} onInput=${(e) => setToken(e.target.value)} />
    </label>
    ${wrong && html`<p class="problem" role="alert">${wrong}</p>`}
    <button class="main" disabled=${!token.trim()}>${text.login.button}</button>
  </form>`;
}

function App({ linkProblem }) {
  const [view, setView] = useState(viewOf());
  const [who, setWho] = useState(null); // the session; null: not known yet
  const [refused, setRefused] = useState('');
  const [connected, setConnected] = useState(null);
  const [cluster, setCluster] = useState(null);
  const [models, setModels] = useState(null);
  const [happened, setHappened] = useState([]);
  const [note, setNote] = useState(linkProblem);
  const [pull, setPull] = useState(null); // the fetch of a model, which goes on in other views
  const [round, setRound] = useState(0); // grows with each login

  useEffect(() => {
    const onHash = () => setView(viewOf());
    addEventListener('hashchange', onHash);
    return () => removeEventListener('hashchange', onHash);
  }, []);
  useEffect(() => {
    document.title = `${text.views[view]} · ${text.title}`;
  }, [view]);

  useEffect(() => {
    const end = new AbortController();
    const refuse = (error) => {
      if (error.status === 403) {
        setWho({ scopes: ['chat'], chatOnly: true });
        location.hash = '#chat';
        return;
      }
      setRefused(session.token ? text.login.wrong : '');
      session.set('');
      setWho({ scopes: [] });
    };
    const start = async () => {
      try {
        setWho(await get('/session'));
      } catch (error) {
        if (error.status === 401 || error.status === 403) return refuse(error);
        setConnected(false);
        setTimeout(() => !end.signal.aborted && start(), 1000);
        return;
      }
      watch({
        state: setConnected,
        refused: refuse,
        event: (type, value) => {
          if (type === 'cluster') setCluster(value);
          if (type === 'models') setModels(value.models);
          if (type === 'event') setHappened((list) => [value, ...list].slice(0, events_max));
        },
      }, end.signal);
    };
    start();
    return () => end.abort();
  }, [round]);

  const login = (token) => {
    session.set(token);
    setCluster(null);
    setModels(null);
    setRound((n) => n + 1);
  };
  const scopes = who?.scopes || [];
  const shared = {
    cluster, models, happened, setNote, view, pull, setPull,
    own: who?.node?.id,
    isAdmin: scopes.includes('admin'),
    viewOnly: Boolean(who?.view_only),
    connected,
  };
  // Nodes of one cluster mostly have their pages at the same port.
  const others = connected === false && cluster ? cluster.nodes.filter((node) => node.state === 'alive')
    .map((node) => ({ name: node.name, host: node.address.replace(/:\d+$/, '') }))
    .filter(({ host }) => host && host !== location.hostname) : [];
  const needsToken = who && scopes.length === 0;
  const View = views[view];
  return html`
    <header>
      <a class="skip" href="#content" onClick=${(e) => { e.preventDefault(); document.getElementById('content').focus(); }}>${text.skip}</a>
      <a class="brand" href="#cluster"><img src="/icon.svg" alt="" width="24" height="24" /> ${text.title}</a>
      <nav aria-label=${text.viewsLabel}>
        ${Object.keys(views).map((name) => html`
          <a key=${name} href=${`#${name}`} aria-current=${name === view ? 'page' : undefined}>${text.views[name]}</a>`)}
      </nav>
      <span class=${`live ${connected ? 'is-live' : ''}`} role="status">
        ${connected === null ? text.connecting : connected ? text.connected : text.gone}</span>
      ${shared.isAdmin && html`<span class="tag">${text.login.asAdmin}</span>`}
      ${session.token && html`<button onClick=${() => login('')}>${text.login.logout}</button>`}
    </header>
    <main id="content" tabindex="-1">
      ${others.length > 0 && html`<p class="note" role="status">${text.otherPages} ${others.map(({ name, host }) => html`
        <a key=${host} href=${`${location.protocol}//${host}${location.port && `:${location.port}`}/#${view}`}>${name}</a> `)}</p>`}
      ${note && html`<p class="note" role="status">${note} <button onClick=${() => setNote('')} aria-label=${text.cancel}>×</button></p>`}
      ${needsToken ? html`<${Login} onToken=${login} wrong=${refused} />`
        : who?.chatOnly && view !== 'chat' ? html`<p class="card">${text.login.chatOnly}</p>`
          : html`<${View} ...${shared} />`}
    </main>`;
}

const linkProblem = await useLink();
render(html`<${App} linkProblem=${linkProblem} />`, document.body);
