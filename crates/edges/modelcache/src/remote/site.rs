//! From `Site.spec.modelStore` to the settings of a store.

use tidegate_config::site::{ModelStore, SecretRef, StoreAddressing, StoreCredentials};

use super::{Addressing, Credentials, Keys, PlainHttp, RemoteOptions, WebIdentity};
use crate::fault::CacheFault;

impl RemoteOptions {
    /// The settings that the Site document means. `secret` gives what a reference stands for; where environment and
    /// files are read is its matter.
    ///
    /// # Errors
    /// [`CacheFault::NoCredentials`] or [`CacheFault::BadSettings`] with what `secret` says.
    pub fn of_site(
        store: &ModelStore,
        secret: &dyn Fn(&SecretRef) -> Result<Vec<u8>, String>,
    ) -> Result<Self, CacheFault> {
        let ModelStore { url, endpoint, region, addressing, allow_http, ca_bundle, credentials, proxy } = store;
        let bundle = ca_bundle.as_ref().map(secret).transpose();
        let ca_bundle = bundle.map_err(|reason| CacheFault::BadSettings { reason: format!("caBundle: {reason}") })?;
        Ok(Self {
            url: url.to_string(),
            endpoint: endpoint.as_deref().map(str::to_owned),
            region: region.as_deref().map(str::to_owned),
            addressing: match addressing {
                StoreAddressing::Path => Addressing::Path,
                StoreAddressing::VirtualHost => Addressing::VirtualHost,
            },
            plain_http: if *allow_http { PlainHttp::Allowed } else { PlainHttp::LoopbackOnly },
            ca_bundle,
            credentials: self::credentials(credentials, secret)?,
            proxy: proxy.as_deref().map(str::to_owned),
        })
    }
}

fn credentials(
    from: &StoreCredentials,
    secret: &dyn Fn(&SecretRef) -> Result<Vec<u8>, String>,
) -> Result<Credentials, CacheFault> {
    // an editor leaves a line's end in a file
    let line = |from: &SecretRef| {
        let text = secret(from).and_then(|bytes| String::from_utf8(bytes).map_err(|_| "it is not text".to_owned()));
        text.map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
            .map_err(|reason| CacheFault::NoCredentials { reason })
    };
    Ok(match from {
        StoreCredentials::Environment => Credentials::Environment,
        StoreCredentials::Keys { access_key, secret_key, session_token } => Credentials::Keys(Keys {
            access_key_id: line(access_key)?,
            secret_access_key: line(secret_key)?,
            session_token: session_token.as_ref().map(line).transpose()?,
        }),
        StoreCredentials::File { path, profile } => {
            Credentials::File { path: path.clone(), profile: profile.to_string() }
        }
        StoreCredentials::WebIdentity { token_file, role_arn, session_name, sts_endpoint } => {
            Credentials::WebIdentity(WebIdentity {
                token_file: token_file.clone(),
                role_arn: role_arn.to_string(),
                session_name: session_name.to_string(),
                sts_endpoint: sts_endpoint.as_deref().map(str::to_owned),
            })
        }
    })
}

#[cfg(test)]
mod tests {
    use tidegate_config::{Source, check};

    use super::*;

    fn store(fields: &str) -> ModelStore {
        let text = format!(
            "apiVersion: tidegate.dev/v1alpha1\nkind: Site\nmetadata: {{name: s}}\n\
             spec: {{modelStore: {{url: 's3://models/p', {fields}}}}}\n"
        );
        check(&[Source::new("/etc/tidegate/site.yaml", text)]).site.unwrap().model_store.clone().unwrap()
    }

    fn secret(from: &SecretRef) -> Result<Vec<u8>, String> {
        match from {
            SecretRef::Env(name) if &**name == "NONE" => Err("NONE is not set".to_owned()),
            SecretRef::Env(name) => Ok(format!("{name}-value\n").into_bytes()),
            SecretRef::File(path) => Ok(path.display().to_string().into_bytes()),
        }
    }

    #[test]
    fn every_setting_of_the_document_arrives() {
        let store = store(
            "endpoint: 'http://store.example:9000', allowHttp: true, region: eu-1, addressing: virtualHost, \
             caBundle: {fromFile: /ca.crt}, proxy: 'http://p:1', \
             accessKey: {fromEnv: A}, secretKey: {fromEnv: S}, sessionToken: {fromEnv: T}",
        );
        let options = RemoteOptions::of_site(&store, &secret).unwrap();
        assert_eq!(options.endpoint.as_deref(), Some("http://store.example:9000"));
        assert_eq!((options.plain_http, options.addressing), (PlainHttp::Allowed, Addressing::VirtualHost));
        assert_eq!((options.region.as_deref(), options.proxy.as_deref()), (Some("eu-1"), Some("http://p:1")));
        assert_eq!(options.ca_bundle.as_deref(), Some(&b"/ca.crt"[..]));
        let keys = Keys {
            access_key_id: "A-value".to_owned(),
            secret_access_key: "S-value".to_owned(),
            session_token: Some("T-value".to_owned()),
        };
        assert_eq!(options.credentials, Credentials::Keys(keys));
    }

    #[test]
    fn files_and_identities_arrive_and_what_is_missing_is_said() {
        let file = RemoteOptions::of_site(&store("credentialsFile: keys"), &secret).unwrap();
        let expected = Credentials::File { path: "/etc/tidegate/keys".into(), profile: "default".to_owned() };
        assert_eq!(file.credentials, expected);
        let identity = "webIdentity: {tokenFile: /t, roleArn: 'arn:aws:iam::1:role/r'}";
        let identity = RemoteOptions::of_site(&store(identity), &secret).unwrap();
        assert!(matches!(identity.credentials, Credentials::WebIdentity(_)));
        let missing = store("accessKey: {fromEnv: NONE}, secretKey: {fromEnv: S}");
        let fault = RemoteOptions::of_site(&missing, &secret).unwrap_err();
        assert_eq!(fault.to_string(), "no credentials: NONE is not set");
    }
}
