// Access to the cluster: nodes that wait for its key, nodes that go, and the tokens of this node.
import { useEffect, useRef, useState } from 'preact/hooks';
import { html } from 'htm/preact';
import { call, get, post } from './api.js';
import { text } from './strings.js';

const words = text.access;
const scopes = Object.keys(words.scope);

function Approve({ waiting, setNote }) {
  const [address, setAddress] = useState('');
  const [asked, setAsked] = useState(null); // { name, code, approval }; no code: it is not known yet
  const end = useRef(null); // ends the approval with this view
  useEffect(() => () => end.current?.abort(), []);
  const approve = async (node, name) => {
    end.current = new AbortController();
    setAsked({ name });
    try {
      await call('/nodes/approve', { node }, (type, value) => {
        if (type === 'code') setAsked({ name, ...value });
      }, end.current.signal);
      setNote(words.approved);
      setAddress('');
    } catch (error) {
      if (!end.current.signal.aborted) setNote(error.message);
    }
    setAsked(null);
  };
  const answer = async (same) => {
    const { name, approval } = asked;
    setAsked({ name });
    try {
      await post('/nodes/approve/confirm', { approval, same });
    } catch (error) {
      setNote(error.message);
    }
  };
  const submit = (event) => {
    event.preventDefault();
    approve(address.trim(), address.trim());
  };
  return html`<section class="card" aria-labelledby="waiting"><h2 id="waiting">${words.waiting}</h2>
    <p class="small">${words.waitingWhat}</p>
    ${waiting.length === 0 ? html`<p>${words.nobodyWaits}</p>` : html`<ul class="rows">${waiting.map((node) => html`
      <li key=${node.id}><b>${node.name}</b> <span class="small">${node.addresses.join(', ')} · ${node.id.slice(0, 8)}</span>
        ${' '}<button disabled=${asked} aria-label=${words.approveOf(node.name)} onClick=${() => approve(node.id, node.name)}>${words.approve}</button></li>`)}</ul>`}
    <form onSubmit=${submit}>
      <label>${words.address}<input value=${address} onInput=${(e) => setAddress(e.target.value)} spellcheck="false" /></label>
      <p class="actions"><button disabled=${!address.trim() || asked}>${words.approve}</button></p>
    </form>
    <div role="status">${asked && !asked.code && html`<p>${words.asking}</p>`}
      ${asked?.code && html`<p>${words.compare(asked.name)} <strong class="code">${asked.code}</strong></p>
      <p class="actions"><button class="main" onClick=${() => answer(true)}>${words.same}</button>
        <button onClick=${() => answer(false)}>${words.different}</button></p>`}</div>
  </section>`;
}

function Nodes({ nodes, own, setNote }) {
  const [busy, setBusy] = useState(null); // { id, note }
  const remove = async (node) => {
    if (!confirm(words.removeSure(node.name))) return;
    setBusy({ id: node.id, note: '' });
    try {
      const done = await call('/nodes/remove', { node: node.id }, (type, value) => setBusy({ id: node.id, note: value.note || '' }));
      setNote(words.removed(done));
    } catch (error) {
      setNote(error.message);
    }
    setBusy(null);
  };
  return html`<section class="card" aria-labelledby="members"><h2 id="members">${words.nodes}</h2>
    <p class="small">${words.nodesWhat}</p>
    <ul class="rows">${nodes.map((node) => html`<li key=${node.id}><b>${node.name}</b> <span class="small">${node.id.slice(0, 8)} · ${text.cluster.states[node.state] || node.state}</span>
      ${' '}${node.id === own ? html`<span class="small">${words.thisNode}</span>` : html`<button disabled=${busy} aria-label=${words.removeOf(node.name)} onClick=${() => remove(node)}>${words.remove}</button>`}
      ${busy?.id === node.id && html`<p class="small" role="status">${busy.note || words.removing}</p>`}</li>`)}</ul>
  </section>`;
}

const day = (seconds) => new Date(seconds * 1000).toLocaleDateString();

function Tokens({ setNote }) {
  const [tokens, setTokens] = useState(null);
  const [round, setRound] = useState(0);
  const [form, setForm] = useState({ name: '', days: '', chat: true, view: false, admin: false });
  const [made, setMade] = useState(null); // { name, token }: shown this once
  useEffect(() => {
    get('/tokens').then((list) => setTokens(list.tokens), (error) => setNote(error.message));
  }, [round]);
  const chosen = scopes.filter((scope) => form[scope]);
  const create = async (event) => {
    event.preventDefault();
    const body = { name: form.name.trim(), scopes: chosen.join(',') };
    if (form.days) body.days = Number(form.days);
    try {
      setMade(await post('/tokens/new', body));
      setForm({ ...form, name: '' });
      setRound((n) => n + 1);
    } catch (error) {
      setNote(error.message);
    }
  };
  const revoke = async (name) => {
    if (!confirm(words.revokeSure(name))) return;
    try {
      await post('/tokens/revoke', { name });
      if (made?.name === name) setMade(null);
      setNote(words.revoked(name));
      setRound((n) => n + 1);
    } catch (error) {
      setNote(error.message);
    }
  };
  return html`<section class="card" aria-labelledby="tokens"><h2 id="tokens">${words.tokens}</h2>
    <p class="small">${words.tokensWhat}</p>
    ${tokens && tokens.length > 0 && html`<div class="scroll"><table>
      <thead><tr><th>${words.name}</th><th>${words.scopes}</th><th>${words.made}</th><th>${words.ends}</th><th><span class="hidden">${text.files.actions}</span></th></tr></thead>
      <tbody>${tokens.map((token) => html`<tr key=${token.name}><td>${token.name}</td><td>${token.scopes}</td><td>${day(token.created)}</td>
        <td>${token.expired ? words.expired : token.expires ? day(token.expires) : words.never}</td>
        <td><button aria-label=${words.revokeOf(token.name)} onClick=${() => revoke(token.name)}>${words.revoke}</button></td></tr>`)}</tbody></table></div>`}
    ${made && html`<div class="card" role="status"><p>${words.once(made.name)}</p>
      <p><code>${made.token}</code></p>
      <p class="actions"><button onClick=${() => navigator.clipboard?.writeText(made.token)}>${text.copy}</button>
        <button onClick=${() => setMade(null)}>${words.hide}</button></p></div>`}
    <form onSubmit=${create}><div class="fields">
        <label>${words.newName}<input value=${form.name} onInput=${(e) => setForm({ ...form, name: e.target.value })} spellcheck="false" autocomplete="off" /></label>
        <label>${words.days}<input type="number" min="1" placeholder=${words.never} value=${form.days} onInput=${(e) => setForm({ ...form, days: e.target.value })} /></label></div>
      <fieldset><legend>${words.scopes}</legend>${scopes.map((scope) => html`
        <label key=${scope} class="check"><input type="checkbox" checked=${form[scope]} onChange=${(e) => setForm({ ...form, [scope]: e.target.checked })} /> ${words.scope[scope]}</label>`)}</fieldset>
      <p class="actions"><button disabled=${!form.name.trim() || chosen.length === 0}>${words.create}</button></p></form>
  </section>`;
}

export function Access({ cluster, own, isAdmin, viewOnly, setNote }) {
  if (!isAdmin) {
    return html`<h1>${words.heading}</h1><p class="card">${viewOnly ? text.login.viewOnly : text.login.needAdmin}</p>`;
  }
  return html`<h1>${words.heading}</h1>
    <${Approve} waiting=${cluster?.waiting || []} setNote=${setNote} />
    <${Nodes} nodes=${cluster?.nodes || []} own=${own} setNote=${setNote} />
    <${Tokens} setNote=${setNote} />`;
}
