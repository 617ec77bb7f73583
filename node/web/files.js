// Models that are not loaded: the files that the nodes have, their other names, and how to fetch more.
import { useEffect, useState } from 'preact/hooks';
import { html } from 'htm/preact';
import { call, get, post } from './api.js';
import { bytes, Progress } from './parts.js';
import { text } from './strings.js';

const words = text.files;

const places = (model) => model.nodes.map((copy) => words.place(copy)).join(', ');

// The copy that Strata has fetched to the node of this page, which alone may remove it.
const removable = (model, own) => model.nodes.find((copy) => copy.node === own && copy.place === 'Strata');

// `round`: differs when the list may have changed, as after changed(). `load(model)`: loads a file.
export function OnDisk({ own, round, changed, isAdmin, busy, load, setNote }) {
  const [files, setFiles] = useState(null);
  useEffect(() => {
    let wanted = true;
    get('/files').then((list) => wanted && setFiles(list), (error) => wanted && setNote(error.message));
    return () => { wanted = false; };
  }, [round]);
  const remove = async (model, copy) => {
    if (!confirm(words.removeSure(model.name, bytes(model.bytes)))) return;
    try {
      const done = await post('/files/remove', { model: copy.path });
      setNote(words.removed(done.removed, bytes(done.freed_bytes)));
      changed();
    } catch (error) {
      setNote(error.message);
    }
  };
  return html`<section class="card" aria-labelledby="on-disk"><h2 id="on-disk">${words.heading}</h2>
    ${!files ? html`<p role="status">${text.loading}</p>` : html`
    ${files.silent.map((name) => html`<p key=${name} class="small">${words.silent(name)}</p>`)}
    ${files.models.length === 0 ? html`<p class="small">${words.none}</p>` : html`<div class="scroll"><table>
      <thead><tr><th>${words.name}</th><th>${words.size}</th><th>${words.quant}</th><th>${words.ctx}</th><th>${words.where}</th><th>${words.state}</th><th><span class="hidden">${words.actions}</span></th></tr></thead>
      <tbody>${files.models.map((model) => {
        const [first] = model.nodes;
        const mine = removable(model, own);
        return html`<tr key=${`${model.name}/${first.node}/${first.path}`}>
          <td>${[model.name, ...model.aliases].join(' = ')}</td><td>${bytes(model.bytes)}</td><td>${model.quant || '–'}</td><td>${model.ctx_max || '–'}</td>
          <td>${places(model)}</td><td>${model.loaded ? words.loaded : ''}</td>
          <td><div class="actions">
            ${isAdmin && html`<a class="button" aria-label=${words.planOf(model.name)} href=${`#plan?${new URLSearchParams({ model: first.path, node: first.node })}`}>${words.plan}</a>`}
            ${isAdmin && !model.loaded && html`<button disabled=${busy} aria-label=${words.loadOf(model.name)} onClick=${() => load({ model: first.path, node: first.node })}>${words.load}</button>`}
            ${isAdmin && !model.loaded && mine && html`<button aria-label=${words.removeOf(model.name)} onClick=${() => remove(model, mine)}>${words.remove}</button>`}
          </div></td></tr>`;
      })}</tbody></table></div>`}`}
  </section>`;
}

// `pull`: { name, file, done, total, note, stop } of the fetch in progress, null: there is none.
export function Pull({ pull, setPull, pulled, setNote }) {
  const [name, setName] = useState('');
  const [catalogue, setCatalogue] = useState([]);
  const [found, setFound] = useState(null); // null: nobody has searched
  const [searching, setSearching] = useState(false);
  useEffect(() => {
    get('/catalogue').then((list) => setCatalogue(list.models), (error) => setNote(error.message));
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    const end = new AbortController();
    const state = { name: name.trim(), file: '', done: 0, total: 0, note: '', stop: () => end.abort() };
    setPull({ ...state });
    try {
      const model = await call('/pull', { model: state.name }, (type, value) => {
        if (type === 'note') state.note = value.note;
        if (type === 'progress') Object.assign(state, { file: value.file, done: value.bytes_done, total: value.bytes_total });
        setPull({ ...state });
      }, end.signal);
      setNote((model.was_here ? words.wasHere : words.pulled)(model.name));
      pulled();
    } catch (error) {
      setNote(end.signal.aborted ? words.stopped : error.message);
    }
    setPull(null);
  };
  const search = async () => {
    setSearching(true);
    try {
      setFound((await post('/search', { words: name.trim() })).models);
    } catch (error) {
      setNote(error.message);
    }
    setSearching(false);
  };
  return html`<form class="card" onSubmit=${submit}><h2>${words.pullHeading}</h2>
    <label>${words.pullName}<input list="catalogue" value=${name} onInput=${(e) => setName(e.target.value)} spellcheck="false" /></label>
    <datalist id="catalogue">${catalogue.map((model) => html`<option key=${model.name} value=${model.name}>${words.about(model.model, bytes(model.bytes_about))}</option>`)}</datalist>
    <p class="actions"><button class="main" disabled=${!name.trim() || pull}>${words.pull}</button>
      <button type="button" disabled=${!name.trim() || searching} onClick=${search}>${words.search}</button></p>
    ${pull && html`<div role="status"><${Progress} label=${pull.file || pull.name} done=${pull.done} total=${pull.total} />
      ${pull.note && html`<p class="small">${pull.note}</p>`}</div>
      <p class="actions"><button type="button" onClick=${pull.stop}>${words.stop}</button></p>`}
    ${found && (found.length === 0 ? html`<p class="small" role="status">${words.nothing}</p>` : html`<ul class="rows" aria-label=${words.found}>${found.map((model) => html`
      <li key=${model.name}><button type="button" onClick=${() => setName(model.name)}>${model.name}</button> <span class="small">${words.downloads(model.downloads)}${model.gated && `, ${words.gated}`}</span></li>`)}</ul>`)}
  </form>`;
}

export function Aliases({ changed, setNote }) {
  const [aliases, setAliases] = useState(null);
  const [form, setForm] = useState({ alias: '', model: '' });
  const [round, setRound] = useState(0);
  useEffect(() => {
    get('/aliases').then((list) => setAliases(list.aliases), (error) => setNote(error.message));
  }, [round]);
  const change = async (path, body, note) => {
    try {
      setNote(note(await post(path, body)));
      setRound((n) => n + 1);
      changed();
      return true;
    } catch (error) {
      setNote(error.message);
      return false;
    }
  };
  const submit = async (event) => {
    event.preventDefault();
    if (await change('/aliases/new', { alias: form.alias.trim(), model: form.model.trim() }, words.aliasMade)) setForm({ alias: '', model: '' });
  };
  const set = (name) => (event) => setForm((old) => ({ ...old, [name]: event.target.value }));
  return html`<form class="card" onSubmit=${submit}><h2>${words.aliases}</h2>
    <p class="small">${words.aliasesWhat}</p>
    ${aliases && Object.keys(aliases).length > 0 && html`<ul class="rows">${Object.entries(aliases).map(([alias, model]) => html`
      <li key=${alias}>${words.stands(alias, model)} <button type="button" aria-label=${words.removeOf(alias)} onClick=${() => change('/aliases/remove', { alias }, () => words.aliasGone(alias))}>${words.remove}</button></li>`)}</ul>`}
    <div class="fields">
      <label>${words.alias}<input value=${form.alias} onInput=${set('alias')} spellcheck="false" /></label>
      <label>${words.aliasModel}<input value=${form.model} onInput=${set('model')} spellcheck="false" /></label>
    </div>
    <p class="actions"><button disabled=${!form.alias.trim() || !form.model.trim()}>${words.aliasSet}</button></p>
  </form>`;
}
